/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

static struct call of_v3(const struct nccl_descriptor_v3 *d, bool message)
{
	if (message)
		return (struct call){.function = d->p2p.func,
				     .datatype = d->p2p.datatype,
				     .group = d->parent,
				     .count = d->p2p.count,
				     .peer = d->p2p.peer,
				     .message = true,
				     .flags = STRAGD_RING_HOST_TIME};
	return (struct call){.function = d->coll.func,
			     .datatype = d->coll.datatype,
			     .algorithm = d->coll.algo,
			     .protocol = d->coll.proto,
			     .group = d->parent,
			     .count = d->coll.count,
			     .sequence = d->coll.sequence,
			     .peer = d->coll.root,
			     .channels = d->coll.max_channels,
			     .flags = STRAGD_RING_HOST_TIME};
}

static struct call of_message(uint32_t version, const struct process *process,
			      const struct nccl_descriptor_v7 *d)
{
	const struct nccl_p2p_v4 *p2p = &d->p2p.v5.v4;

	return (struct call){.function = p2p->func,
			     .datatype = p2p->datatype,
			     .group = version > 4 ? d->p2p.v5.parent_group : d->parent,
			     .count = p2p->count,
			     .peer = p2p->peer,
			     .message = true,
			     .channels = version > 4 || process->announces_p2p ? p2p->channels : 0};
}

static struct call of_collective(uint32_t version, const struct process *process,
				 const struct nccl_descriptor_v7 *d)
{
	const struct nccl_coll_v4 *coll = &d->coll.v5.v4;
	/* Symmetric kernels announce no channels. (Channels of 256 are announced as 0 too, by
	 * RCCL.) */
	const bool symmetric = version == 7 ? d->coll.symmetric
					    : version > 4 && coll->channels == 0 &&
						  process->vendor == STRAGD_RING_NVIDIA;

	return (struct call){.function = coll->func,
			     .datatype = coll->datatype,
			     .algorithm = coll->algo,
			     .protocol = coll->proto,
			     .group = version > 4 ? d->coll.v5.parent_group : d->parent,
			     .count = coll->count,
			     .sequence = coll->sequence,
			     .peer = coll->root,
			     .channels = coll->channels,
			     .flags = symmetric ? STRAGD_RING_SYMMETRIC : 0};
}

static struct call of_copies(const struct nccl_ce_coll *ce)
{
	return (struct call){.function = ce->func,
			     .datatype = ce->datatype,
			     .count = ce->count,
			     .sequence = ce->sequence,
			     .peer = ce->root,
			     .flags = STRAGD_RING_COPY_ENGINE,
			     .timeless = true};
}

struct call call_of(uint32_t version, const struct process *process, uint64_t type,
		    const void *descriptor)
{
	const struct nccl_descriptor_v7 *d = descriptor;
	struct call call;

	if (type == NCCL_CE_COLL)
		call = of_copies(&d->ce_coll);
	else if (version == 3)
		return of_v3(descriptor, type == NCCL_P2P);
	else if (type == NCCL_P2P)
		call = of_message(version, process, d);
	else
		call = of_collective(version, process, d);
	if (version > 4 && handle_kind(d->parent) == HANDLE_GRAPH)
		call.flags |= STRAGD_RING_GRAPH;
	/* Before version 7 symmetric kernels are not timed, later not in graphs. */
	if (call.flags & STRAGD_RING_SYMMETRIC)
		call.timeless = version < 7 || call.flags & STRAGD_RING_GRAPH;
	return call;
}
