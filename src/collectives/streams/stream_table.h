// The table (towline/plugin/collective.h) of a backend that is a StreamBackend.
#pragma once

#include <functional>
#include <memory>

#include "collectives/calls/guarded.h"
#include "collectives/streams/stream_backend.h"
#include "towline/plugin/collective.h"

namespace towline::collectives {

using OpenFunction = int32_t (*)(const towline_collective_open_args*, towline_collective_backend**);

towline_collective_table_v1_t make_stream_table(OpenFunction open);

// The object behind a handle of the table.
StreamBackend& backend_of(towline_collective_backend* handle);
// The handle that the table's functions take.
towline_collective_backend* hand_out(const towline_collective_open_args& args,
                                     std::unique_ptr<StreamBackend> backend);

}  // namespace towline::collectives
