// Which edges of the code under test a run has taken, where a compiler reports its blocks (GCC's
// -fsanitize-coverage=trace-pc); nothing otherwise.
#pragma once

#include <cstddef>

namespace fuzzing {

// Forgets the edges of the run before.
void begin_run();

// Ends a run: whether it took an edge that none before it took, or took one far more often.
bool reached_something_new();

// Edges that were taken so far.
size_t edges_reached();

}  // namespace fuzzing
