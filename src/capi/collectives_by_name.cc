// The operations by name, each a towline_collective.
#include "towline/collectives.h"

namespace {

towline_collective_t call_of(towline_collective_op_t op, uint32_t datatype) noexcept {
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = op;
  call.datatype = datatype;
  return call;
}

}  // namespace

extern "C" {

int32_t towline_barrier(towline_communicator_t* communicator, const towline_collective_options_t* options,
                        towline_work_t** work) {
  towline_collective_t call = call_of(TOWLINE_COLLECTIVE_BARRIER, TOWLINE_UINT8);
  return towline_collective(communicator, &call, options, work);
}

int32_t towline_all_reduce(towline_communicator_t* communicator, const void* input, void* output,
                           uint64_t count, uint32_t datatype, uint32_t reduction,
                           const towline_collective_options_t* options, towline_work_t** work) {
  towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, datatype);
  call.input = input;
  call.output = output;
  call.count = count;
  call.reduction = reduction;
  return towline_collective(communicator, &call, options, work);
}

int32_t towline_reduce(towline_communicator_t* communicator, const void* input, void* output, uint64_t count,
                       uint32_t datatype, uint32_t reduction, int32_t root,
                       const towline_collective_options_t* options, towline_work_t** work) {
  towline_collective_t call = call_of(TOWLINE_COLLECTIVE_REDUCE, datatype);
  call.input = input;
  call.output = output;
  call.count = count;
  call.reduction = reduction;
  call.root = root;
  return towline_collective(communicator, &call, options, work);
}

int32_t towline_broadcast(towline_communicator_t* communicator, void* buffer, uint64_t count,
                          uint32_t datatype, int32_t root, const towline_collective_options_t* options,
                          towline_work_t** work) {
  towline_collective_t call = call_of(TOWLINE_COLLECTIVE_BROADCAST, datatype);
  call.input = buffer;
  call.output = buffer;
  call.count = count;
  call.root = root;
  return towline_collective(communicator, &call, options, work);
}

int32_t towline_all_gather(towline_communicator_t* communicator, const void* input, void* output,
                           uint64_t count, uint32_t datatype, const towline_collective_options_t* options,
                           towline_work_t** work) {
  towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_GATHER, datatype);
  call.input = input;
  call.output = output;
  call.count = count;
  return towline_collective(communicator, &call, options, work);
}

int32_t towline_reduce_scatter(towline_communicator_t* communicator, const void* input, void* output,
                               uint64_t count, uint32_t datatype, uint32_t reduction,
                               const towline_collective_options_t* options, towline_work_t** work) {
  towline_collective_t call = call_of(TOWLINE_COLLECTIVE_REDUCE_SCATTER, datatype);
  call.input = input;
  call.output = output;
  call.count = count;
  call.reduction = reduction;
  return towline_collective(communicator, &call, options, work);
}

int32_t towline_all_to_all(towline_communicator_t* communicator, const void* input, void* output,
                           uint64_t count, uint32_t datatype, const towline_collective_options_t* options,
                           towline_work_t** work) {
  towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_TO_ALL, datatype);
  call.input = input;
  call.output = output;
  call.count = count;
  return towline_collective(communicator, &call, options, work);
}

int32_t towline_send(towline_communicator_t* communicator, const void* input, uint64_t count,
                     uint32_t datatype, int32_t peer, uint64_t tag,
                     const towline_collective_options_t* options, towline_work_t** work) {
  towline_collective_t call = call_of(TOWLINE_COLLECTIVE_SEND, datatype);
  call.input = input;
  call.count = count;
  call.root = peer;
  call.tag = tag;
  return towline_collective(communicator, &call, options, work);
}

int32_t towline_recv(towline_communicator_t* communicator, void* output, uint64_t count, uint32_t datatype,
                     int32_t peer, uint64_t tag, const towline_collective_options_t* options,
                     towline_work_t** work) {
  towline_collective_t call = call_of(TOWLINE_COLLECTIVE_RECV, datatype);
  call.output = output;
  call.count = count;
  call.root = peer;
  call.tag = tag;
  return towline_collective(communicator, &call, options, work);
}

}  // extern "C"
