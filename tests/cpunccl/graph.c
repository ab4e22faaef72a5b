/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: operations captured in order, with their streams, and enqueued again at each launch. */
#include <stdlib.h>
#include "internal.h"
#include "profiler.h"

struct cpunccl_graph {
	struct stream_op *operations;
	size_t count, room;
};

static _Thread_local cpunccl_graph *captured;

bool capturing(void)
{
	return captured;
}

void cpunccl_graph_begin(void)
{
	captured = calloc(1, sizeof *captured);
}

cpunccl_graph *cpunccl_graph_end(void)
{
	cpunccl_graph *graph = captured;

	captured = 0;
	return graph;
}

void graph_append(cpunccl_stream *stream, const struct stream_op *operation)
{
	if (captured->count == captured->room) {
		captured->room = captured->room ? 2 * captured->room : 64;
		captured->operations =
		    realloc(captured->operations, captured->room * sizeof *captured->operations);
		if (!captured->operations)
			abort();
	}
	captured->operations[captured->count] = *operation;
	captured->operations[captured->count++].stream = stream;
}

static bool first_use(const cpunccl_graph *graph, size_t i)
{
	for (size_t k = 0; k < i; k++) {
		if (graph->operations[k].stream == graph->operations[i].stream)
			return false;
	}
	return true;
}

/* The mark of this launch for one that the graph records, else the mark itself. */
static struct mark *fresh(const cpunccl_graph *graph, struct mark **marks, struct mark *mark)
{
	for (size_t k = 0; k < graph->count; k++) {
		if (graph->operations[k].kind == RECORD && graph->operations[k].mark == mark)
			return marks[k];
	}
	return mark;
}

void cpunccl_graph_launch(cpunccl_graph *graph, cpunccl_stream *stream)
{
	struct mark **marks = calloc(graph->count + 1, sizeof *marks);
	int64_t now = host_time();

	if (!marks)
		abort();
	stream = stream_or_default(stream);
	for (size_t i = 0; i < graph->count; i++) {
		if (graph->operations[i].kind == RECORD)
			marks[i] = mark_new();
		if (first_use(graph, i) && graph->operations[i].stream != stream)
			stream_after(graph->operations[i].stream, stream);
	}
	for (size_t i = 0; i < graph->count; i++) {
		struct stream_op op = graph->operations[i];

		op.enqueued = now;
		if (op.mark)
			op.mark = mark_hold(fresh(graph, marks, op.mark));
		if (op.plan) {
			plan_hold(op.plan);
			comm_plan_begins(op.plan->comm);
		}
		stream_enqueue(op.stream, op);
	}
	for (size_t i = 0; i < graph->count; i++) {
		mark_drop(marks[i]);
		if (first_use(graph, i) && graph->operations[i].stream != stream)
			stream_after(stream, graph->operations[i].stream);
	}
	free(marks);
}

void cpunccl_graph_destroy(cpunccl_graph *graph)
{
	for (size_t i = 0; i < graph->count; i++) {
		mark_drop(graph->operations[i].mark);
		if (graph->operations[i].plan)
			plan_drop(graph->operations[i].plan);
	}
	free(graph->operations);
	free(graph);
}
