// A backend without other ranks: everything ends at once. Outputs are computed as if every rank gave the same
// data as this one; sends do nothing, and receives do not change their buffer. Use it to try a program of
// many ranks in one process, and to measure the cost of a call alone.
#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/backend.h"
#include "collectives/calls/call.h"
#include "collectives/calls/types.h"
#include "collectives/reduce.h"

namespace towline::collectives {
namespace fake {
namespace {

// The object behind the table's opaque handle. It has another name than the handle, because another backend
// in this library defines that struct.
struct Fake {
  int rank;
  int size;
  Call call;
};
Fake* fake_of(towline_collective_backend* handle) { return reinterpret_cast<Fake*>(handle); }

void move_bytes(void* to, const void* from, uint64_t bytes) {
  if (bytes != 0 && to != nullptr && from != nullptr && to != from) std::memmove(to, from, bytes);
}

int32_t open(const towline_collective_open_args* args, towline_collective_backend** backend) {
  *backend = reinterpret_cast<towline_collective_backend*>(new Fake{args->rank, args->size, {}});
  return TOWLINE_OK;
}

void close(towline_collective_backend* backend) { delete fake_of(backend); }

int32_t perform(towline_collective_backend* handle, const towline_collective_t* given, uint64_t number,
                uint64_t deadline_ns) {
  Fake* const backend = fake_of(handle);
  Call& call = backend->call;
  take_apart(*given, backend->rank, backend->size, number, Deadline::at(deadline_ns), call);
  const auto me = static_cast<size_t>(backend->rank);
  switch (call.op) {
    case TOWLINE_COLLECTIVE_ALL_REDUCE:
    case TOWLINE_COLLECTIVE_BROADCAST:
      move_bytes(call.output, call.input, call.bytes);
      break;
    case TOWLINE_COLLECTIVE_REDUCE:
      if (backend->rank == call.root) move_bytes(call.output, call.input, call.bytes);
      break;
    case TOWLINE_COLLECTIVE_ALL_GATHER:
    case TOWLINE_COLLECTIVE_ALL_GATHER_V:
      for (size_t rank = 0; rank < call.out.at.size(); ++rank)
        move_bytes(call.out.at[rank], call.input, std::min(call.out.bytes[rank], call.bytes));
      break;
    case TOWLINE_COLLECTIVE_GATHER:
      if (backend->rank == call.root) {
        for (size_t rank = 0; rank < call.out.at.size(); ++rank)
          move_bytes(call.out.at[rank], call.input, call.bytes);
      }
      break;
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER:
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER_V:
      move_bytes(call.output, call.in.at[me], call.in.bytes[me]);
      break;
    case TOWLINE_COLLECTIVE_SCATTER:
      if (backend->rank == call.root) move_bytes(call.output, call.in.at[me], call.bytes);
      break;
    case TOWLINE_COLLECTIVE_ALL_TO_ALL:
    case TOWLINE_COLLECTIVE_ALL_TO_ALL_V:
      for (size_t rank = 0; rank < call.out.at.size(); ++rank)
        move_bytes(call.out.at[rank], call.in.at[rank], std::min(call.out.bytes[rank], call.in.bytes[rank]));
      break;
    default:
      break;
  }
  return TOWLINE_OK;
}

int32_t message_start(towline_collective_backend* backend, const towline_collective_t*,
                      towline_collective_message** message) {
  *message = reinterpret_cast<towline_collective_message*>(backend);
  return TOWLINE_OK;
}
int32_t message_test(towline_collective_backend*, towline_collective_message*) { return TOWLINE_OK; }
void message_release(towline_collective_backend*, towline_collective_message*) {}
void message_wait(towline_collective_backend*, uint64_t) {}
void abort(towline_collective_backend*, int32_t, const char*) {}

int32_t describe(towline_collective_backend*, char* json, size_t capacity, size_t* needed) {
  constexpr char kText[] = "{}";
  *needed = sizeof kText;
  if (capacity >= sizeof kText) std::memcpy(json, kText, sizeof kText);
  return TOWLINE_OK;
}

}  // namespace
}  // namespace fake

const towline_collective_table_v1_t& fake_backend() {
  static const towline_collective_table_v1_t table = [] {
    towline_collective_table_v1_t made = {};
    made.struct_size = sizeof made;
    made.major = TOWLINE_COLLECTIVE_MAJOR;
    made.version = "1";
    made.open = fake::open;
    made.close = fake::close;
    made.perform = fake::perform;
    made.message_start = fake::message_start;
    made.message_test = fake::message_test;
    made.message_release = fake::message_release;
    made.message_wait = fake::message_wait;
    made.abort = fake::abort;
    made.describe = fake::describe;
    return made;
  }();
  return table;
}

}  // namespace towline::collectives
