"""Control socket: one JSON object per line in, one per line out.

``/run/stragd/control.sock`` (stream, 0660, group ``stragd``). A connection may carry any number
of requests, one after the other; a request is at most 64 KiB, an idle connection is closed.

Request::

    {"version": 1, "verb": VERB, ...arguments of the verb...}

Reply, on one line, either of::

    {"version": 1, "result": {...}}
    {"version": 1, "error": {"code": CODE, "message": "one line for a person"}}

CODE is ``bad-request`` (not JSON, wrong shape, unknown argument), ``bad-version``,
``unknown-verb``, ``too-large``, ``forbidden``, ``not-found``, ``busy`` (too many connections),
``unavailable`` (the daemon cannot do it: no probes) or ``internal``. After ``too-large`` and
``busy`` the daemon closes the connection.

Reading verbs, for root and members of the group (types: ``stragd.outputs.snapshot``):

``status``
    no arguments -> ``Status``
``jobs``
    no arguments -> ``{"jobs": [Job]}``
``ranks``
    ``job``: key, unique beginning of a key, or name; may be left out when there is one job
    -> ``{"job": Job, "ranks": [Rank]}``; ``not-found`` names the jobs there are
``findings``
    ``job`` (optional, as above), ``cleared`` (optional boolean: the cleared ones too)
    -> ``{"findings": [Finding], "abstentions": [Abstention]}``
``top``
    no arguments -> ``Top``
``doctor``
    no arguments -> ``{"checks": [Check], "libraries": [Library]}``
``config``
    no arguments -> ``{"files": [path], "values": [ConfigValue]}``
``probes``
    without ``set`` -> ``{"probes": "on" | "off"}``

Changing verbs, for root only (otherwise ``forbidden``):

``probes``
    ``set``: ``"on"`` or ``"off"`` -> ``{"probes": "on" | "off"}`` once it is done
``reload``
    no arguments -> ``{"changed": [key], "restart": [key]}``: keys whose value changed, and those
    of them that wait for a restart; ``bad-request`` with the reason keeps the old configuration
"""

from __future__ import annotations

PROTOCOL_VERSION = 1
DEFAULT_SOCKET = "/run/stragd/control.sock"
