// The operations: converts tensors to one towline_collective_t, which completes at once or becomes a Work.
#include <numeric>

#include <towline/collectives_gpu.h>

#include "communicator.h"

namespace towline::python {

namespace {

using Counts = std::vector<uint64_t>;

// One call on its way.
class Call {
 public:
  Call(nb::handle self, uint32_t op, bool async, nb::handle stream)
      : self_(self), communicator_(communicator_of(self)), async_(async), streamed_(!stream.is_none()) {
    call_.struct_size = sizeof call_;
    call_.op = op;
    call_.datatype = TOWLINE_UINT8;
    if (async) held_.keep_objects();
    if (!streamed_) return;
    stream_ = stream_of(stream);
    held_.take_gpus();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  towline_collective_t* operator->() noexcept { return &call_; }
  [[nodiscard]] uint64_t size() const noexcept { return static_cast<uint64_t>(communicator_.size); }
  [[nodiscard]] bool at_root() const { return call_.root == communicator_.rank; }
  Held& held() noexcept { return held_; }

  void reduce_with(nb::handle op, nb::handle factor) {
    call_.reduction = reduction_of(op);
    reduces_ = true;
    if (!factor.is_none() && call_.reduction != TOWLINE_REDUCE_PREMUL_SUM)
      raise(TOWLINE_INVALID_ARGUMENT, "factor: premul_sum alone multiplies by it");
    if (!factor.is_none()) {
      call_.factor = PyFloat_AsDouble(factor.ptr());
      if (call_.factor == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
    } else if (call_.reduction == TOWLINE_REDUCE_PREMUL_SUM) {
      raise(TOWLINE_INVALID_ARGUMENT, "premul_sum needs a factor");
    }
  }

  // The type of one tensor of the operation; all have the same.
  void type(const View& view, const char* what) {
    const bool known = view.datatype != View::kUnknownType;
    if (!known && reduces_)
      raise(TOWLINE_UNSUPPORTED, std::string(what) + ": there is no reduction for its type");
    if (!typed_) {
      typed_ = true;
      datatype_ = view.datatype;
      item_bytes_ = view.item_bytes;
      call_.datatype = known ? view.datatype : uint32_t{TOWLINE_UINT8};
    } else if (datatype_ != view.datatype || item_bytes_ != view.item_bytes) {
      raise(TOWLINE_MISMATCH, std::string(what) + ": its type is not that of the other tensors");
    }
  }
  // Elements as the call counts them: types that can't be reduced are counted in bytes.
  [[nodiscard]] uint64_t scaled(uint64_t elements) const noexcept {
    return datatype_ == View::kUnknownType ? elements * item_bytes_ : elements;
  }

  View input(nb::handle tensor, const char* what) {
    const View view = held_.view(tensor, what);
    type(view, what);
    call_.input = view.data;
    return view;
  }
  View output(nb::handle tensor, const char* what) {
    const View view = held_.writable_view(tensor, what);
    type(view, what);
    call_.output = view.data;
    return view;
  }
  // One tensor per rank; their sizes.
  Counts inputs(nb::handle list, const char* what) {
    Counts counts = parts(list, what, [&](nb::handle tensor) { return held_.view(tensor, what); });
    call_.inputs = const_cast<const void* const*>(pointers_.back().data());
    return counts;
  }
  Counts outputs(nb::handle list, const char* what) {
    Counts counts = parts(list, what, [&](nb::handle tensor) { return held_.writable_view(tensor, what); });
    call_.outputs = pointers_.back().data();
    return counts;
  }
  const uint64_t* keep(Counts counts) {
    for (uint64_t& count : counts) count = scaled(count);
    counts_.push_back(std::move(counts));
    return counts_.back().data();
  }

  nb::object issue(nb::handle timeout, nb::handle hints) {
    CallOptions options(timeout, hints);
    int32_t status = 0;
    if (streamed_) return issue_on_stream(options);
    if (!async_) {
      options.heed_signals();
      {
        const CommunicatorCall call(communicator_);
        status = towline_collective(call.native(), &call_, options.native(), nullptr);
      }
      check_waited(status, "towline_collective");
      return nb::none();
    }
    towline_work_t* work = nullptr;
    {
      const CommunicatorCall call(communicator_);
      status = towline_collective(call.native(), &call_, options.native(), &work);
    }
    check(status, "towline_collective");
    return make_work(self_, work, std::move(held_));
  }

 private:
  nb::object issue_on_stream(const CallOptions& options) {
    towline_work_t* work = nullptr;
    int32_t status = 0;
    {
      const CommunicatorCall call(communicator_);
      status = async_
                   ? towline_collective_issue_beside(call.native(), &call_, options.native(), stream_, &work)
                   : towline_collective_issue(call.native(), &call_, options.native(), stream_);
    }
    check(status, async_ ? "towline_collective_issue_beside" : "towline_collective_issue");
    return async_ ? make_work(self_, work, std::move(held_), true) : nb::none();
  }

  template <class Take>
  Counts parts(nb::handle list, const char* what, Take take) {
    const nb::object sequence = nb::steal(PySequence_Fast(list.ptr(), "a list of tensors, one per rank"));
    if (!sequence.is_valid()) throw nb::python_error();
    const auto given = static_cast<uint64_t>(PySequence_Fast_GET_SIZE(sequence.ptr()));
    if (given != size()) {
      raise(TOWLINE_INVALID_ARGUMENT, std::string(what) + ": " + std::to_string(given) + " tensors for " +
                                          std::to_string(size()) + " ranks");
    }
    Counts counts;
    pointers_.emplace_back();
    for (uint64_t i = 0; i < given; ++i) {
      const View view = take(PySequence_Fast_GET_ITEM(sequence.ptr(), static_cast<Py_ssize_t>(i)));
      type(view, what);
      pointers_.back().push_back(view.data);
      counts.push_back(view.count);
    }
    return counts;
  }

  nb::handle self_;
  Communicator& communicator_;
  const bool async_;
  const bool streamed_;
  void* stream_ = nullptr;
  towline_collective_t call_{};
  bool reduces_ = false;
  bool typed_ = false;
  uint32_t datatype_ = TOWLINE_UINT8;
  uint64_t item_bytes_ = 1;
  Held held_;
  std::vector<std::vector<void*>> pointers_;
  std::vector<Counts> counts_;
};

bool is_list(nb::handle object) {
  return PyList_Check(object.ptr()) ||
         (PyTuple_Check(object.ptr()) &&
          !(PyTuple_GET_SIZE(object.ptr()) == 3 && PyLong_Check(PyTuple_GET_ITEM(object.ptr(), 0))));
}

bool all_equal(const Counts& counts, uint64_t count) {
  for (const uint64_t one : counts) {
    if (one != count) return false;
  }
  return true;
}

[[noreturn]] void refuse_sizes(const char* what, uint64_t has, uint64_t needs) {
  raise(TOWLINE_MISMATCH, std::string(what) + " has " + std::to_string(has) + " elements where " +
                              std::to_string(needs) + " belong");
}

void need_size(const char* what, uint64_t has, uint64_t needs) {
  if (has != needs) refuse_sizes(what, has, needs);
}

nb::object all_reduce(nb::handle self, nb::handle tensor, nb::handle op, nb::handle output, nb::handle factor,
                      bool async_op, nb::handle timeout, nb::handle hints, nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_ALL_REDUCE, async_op, stream);
  call.reduce_with(op, factor);
  const bool in_place = output.is_none();
  const View in = in_place ? call.output(tensor, "tensor") : call.input(tensor, "tensor");
  call->input = in.data;
  call->count = in.count;
  if (!in_place) need_size("output", call.output(output, "output").count, in.count);
  return call.issue(timeout, hints);
}

// Only into a stream: what follows an all_reduce on a GPU.
void all_reduce_rms_norm(nb::handle self, nb::handle tensor, nb::handle residual, nb::handle weight,
                         nb::handle stream, float epsilon, nb::handle width, nb::handle output,
                         nb::handle timeout, nb::handle hints) {
  Held held;
  held.take_gpus();
  const bool in_place = output.is_none();
  const View in = in_place ? held.writable_view(tensor, "tensor") : held.view(tensor, "tensor");
  towline_collective_norm_t norm = {};
  norm.struct_size = sizeof norm;
  norm.datatype = in.datatype;
  norm.epsilon = epsilon;
  norm.input = norm.output = in.data;
  const auto same = [&](const View& view, const char* what, uint64_t count) {
    if (view.datatype != in.datatype)
      raise(TOWLINE_MISMATCH, std::string(what) + ": its type is not that of the other tensors");
    need_size(what, view.count, count);
    return view.data;
  };
  if (!in_place) norm.output = same(held.writable_view(output, "output"), "output", in.count);
  if (!residual.is_none())
    norm.residual = same(held.writable_view(residual, "residual"), "residual", in.count);
  if (!width.is_none()) {
    norm.width = unsigned_integer(width, "width");
  } else if (weight.is_none()) {
    raise(TOWLINE_INVALID_ARGUMENT, "without a weight the width of a row must be given");
  }
  if (!weight.is_none()) {
    const View view = held.view(weight, "weight");
    if (width.is_none()) norm.width = view.count;
    norm.weight = same(view, "weight", norm.width);
  }
  if (norm.width == 0 || in.count % norm.width != 0)
    raise(TOWLINE_INVALID_ARGUMENT, "tensor: " + std::to_string(in.count) +
                                        " elements are no whole rows of " + std::to_string(norm.width));
  norm.rows = in.count / norm.width;
  const CallOptions options(timeout, hints);
  void* const address = stream_of(stream);
  int32_t status = 0;
  {
    const CommunicatorCall call(communicator_of(self));
    status = towline_collective_issue_norm(call.native(), &norm, options.native(), address);
  }
  check(status, "towline_collective_issue_norm");
}

nb::object reduce(nb::handle self, nb::handle tensor, nb::handle root, nb::handle op, nb::handle output,
                  nb::handle factor, bool async_op, nb::handle timeout, nb::handle hints, nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_REDUCE, async_op, stream);
  call.reduce_with(op, factor);
  call->root = small_integer(root, "root");
  const bool at_root = call.at_root();
  const bool in_place = at_root && output.is_none();
  const View in = in_place ? call.output(tensor, "tensor") : call.input(tensor, "tensor");
  call->input = in.data;
  call->count = in.count;
  if (at_root && !in_place) need_size("output", call.output(output, "output").count, in.count);
  return call.issue(timeout, hints);
}

nb::object broadcast(nb::handle self, nb::handle tensor, nb::handle root, bool async_op, nb::handle timeout,
                     nb::handle hints, nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_BROADCAST, async_op, stream);
  call->root = small_integer(root, "root");
  const View view = call.at_root() ? call.input(tensor, "tensor") : call.output(tensor, "tensor");
  call->input = view.data;
  call->output = view.data;
  call->count = call.scaled(view.count);
  return call.issue(timeout, hints);
}

nb::object all_gather(nb::handle self, nb::handle output, nb::handle input, bool async_op, nb::handle timeout,
                      nb::handle hints, nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_ALL_GATHER, async_op, stream);
  const View in = call.input(input, "input");
  call->count = call.scaled(in.count);
  if (!is_list(output)) {
    need_size("output", call.output(output, "output").count, in.count * call.size());
    return call.issue(timeout, hints);
  }
  Counts counts = call.outputs(output, "output");
  if (!all_equal(counts, in.count)) {
    call->op = TOWLINE_COLLECTIVE_ALL_GATHER_V;
    need_size("the input", in.count, counts[static_cast<size_t>(communicator_of(self).rank)]);
    call->output_counts = call.keep(std::move(counts));
    call->count = 0;
  }
  return call.issue(timeout, hints);
}

// Sizes may differ between ranks, so every rank uses the uneven operation, even if its own sizes are equal.
nb::object all_gather_v(nb::handle self, nb::handle output, nb::handle input, bool async_op,
                        nb::handle timeout, nb::handle hints, nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_ALL_GATHER_V, async_op, stream);
  const View in = call.input(input, "input");
  Counts counts = call.outputs(output, "output");
  need_size("the input", in.count, counts[static_cast<size_t>(communicator_of(self).rank)]);
  call->output_counts = call.keep(std::move(counts));
  return call.issue(timeout, hints);
}

nb::object reduce_scatter(nb::handle self, nb::handle output, nb::handle input, nb::handle op,
                          nb::handle factor, bool async_op, nb::handle timeout, nb::handle hints,
                          nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_REDUCE_SCATTER, async_op, stream);
  call.reduce_with(op, factor);
  const View out = call.output(output, "output");
  call->count = out.count;
  if (!is_list(input)) {
    need_size("input", call.input(input, "input").count, out.count * call.size());
    return call.issue(timeout, hints);
  }
  Counts counts = call.inputs(input, "input");
  if (!all_equal(counts, out.count)) {
    call->op = TOWLINE_COLLECTIVE_REDUCE_SCATTER_V;
    need_size("the output", out.count, counts[static_cast<size_t>(communicator_of(self).rank)]);
    call->input_counts = call.keep(std::move(counts));
    call->count = 0;
  }
  return call.issue(timeout, hints);
}

nb::object reduce_scatter_v(nb::handle self, nb::handle output, nb::handle input, nb::handle op,
                            nb::handle factor, bool async_op, nb::handle timeout, nb::handle hints,
                            nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_REDUCE_SCATTER_V, async_op, stream);
  call.reduce_with(op, factor);
  const View out = call.output(output, "output");
  Counts counts = call.inputs(input, "input");
  need_size("the output", out.count, counts[static_cast<size_t>(communicator_of(self).rank)]);
  call->input_counts = call.keep(std::move(counts));
  return call.issue(timeout, hints);
}

nb::object gather(nb::handle self, nb::handle output, nb::handle input, nb::handle root, bool async_op,
                  nb::handle timeout, nb::handle hints, nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_GATHER, async_op, stream);
  call->root = small_integer(root, "root");
  const View in = call.input(input, "input");
  call->count = call.scaled(in.count);
  if (call.at_root()) {
    if (output.is_none()) raise(TOWLINE_INVALID_ARGUMENT, "output: the root needs one");
    if (is_list(output)) {
      for (const uint64_t count : call.outputs(output, "output"))
        need_size("a part of the output", count, in.count);
    } else {
      need_size("output", call.output(output, "output").count, in.count * call.size());
    }
  }
  return call.issue(timeout, hints);
}

nb::object scatter(nb::handle self, nb::handle output, nb::handle input, nb::handle root, bool async_op,
                   nb::handle timeout, nb::handle hints, nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_SCATTER, async_op, stream);
  call->root = small_integer(root, "root");
  const View out = call.output(output, "output");
  call->count = call.scaled(out.count);
  if (call.at_root()) {
    if (input.is_none()) raise(TOWLINE_INVALID_ARGUMENT, "input: the root needs one");
    if (is_list(input)) {
      for (const uint64_t count : call.inputs(input, "input"))
        need_size("a part of the input", count, out.count);
    } else {
      need_size("input", call.input(input, "input").count, out.count * call.size());
    }
  }
  return call.issue(timeout, hints);
}

uint64_t rows_of(nb::handle tensor, const View& view) {
  if (view.rows != 0 && !nb::hasattr(tensor, "shape")) return view.rows;
  const nb::object shape = tensor.attr("shape");
  return nb::len(shape) != 0 ? nb::cast<uint64_t>(shape[0]) : 1;
}

// Rows for each rank to elements for each rank.
Counts take_splits(nb::handle splits, nb::handle tensor, const View& view, uint64_t size, const char* what) {
  Counts counts;
  for (nb::handle split : nb::borrow(splits)) {
    const long long rows = PyLong_AsLongLong(split.ptr());
    if (rows == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (rows < 0) raise(TOWLINE_INVALID_ARGUMENT, std::string(what) + ": a split is negative");
    counts.push_back(static_cast<uint64_t>(rows));
  }
  if (counts.size() != size) {
    raise(TOWLINE_INVALID_ARGUMENT, std::string(what) + ": " + std::to_string(counts.size()) +
                                        " splits for " + std::to_string(size) + " ranks");
  }
  const uint64_t rows = rows_of(tensor, view);
  const uint64_t sum = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (sum != rows) {
    raise(TOWLINE_MISMATCH, std::string(what) + ": they sum to " + std::to_string(sum) + ", the tensor has " +
                                std::to_string(rows) + " rows");
  }
  const uint64_t per_row = rows != 0 ? view.count / rows : 0;
  for (uint64_t& count : counts) count *= per_row;
  return counts;
}

nb::object all_to_all(nb::handle self, nb::handle output, nb::handle input, nb::handle output_splits,
                      nb::handle input_splits, bool async_op, nb::handle timeout, nb::handle hints,
                      nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_ALL_TO_ALL, async_op, stream);
  if (is_list(output) != is_list(input))
    raise(TOWLINE_INVALID_ARGUMENT, "output and input are both lists of tensors, or both tensors");
  if (is_list(output)) {
    // Sizes that are equal on one rank may differ on another, so lists always use the operation with sizes.
    call->op = TOWLINE_COLLECTIVE_ALL_TO_ALL_V;
    Counts in = call.inputs(input, "input");
    Counts out = call.outputs(output, "output");
    call->input_counts = call.keep(std::move(in));
    call->output_counts = call.keep(std::move(out));
    return call.issue(timeout, hints);
  }
  const View in = call.input(input, "input");
  const View out = call.output(output, "output");
  if (output_splits.is_none() && input_splits.is_none()) {
    need_size("output", out.count, in.count);
    if (in.count % call.size() != 0) {
      raise(TOWLINE_MISMATCH, "input: its " + std::to_string(in.count) + " elements do not divide among " +
                                  std::to_string(call.size()) + " ranks");
    }
    call->count = call.scaled(in.count / call.size());
    return call.issue(timeout, hints);
  }
  call->op = TOWLINE_COLLECTIVE_ALL_TO_ALL_V;
  const auto counts = [&](nb::handle splits, nb::handle tensor, const View& view, const char* what) {
    if (!splits.is_none()) return take_splits(splits, tensor, view, call.size(), what);
    if (view.count % call.size() != 0)
      raise(TOWLINE_MISMATCH, std::string(what) + ": without them the tensor has to divide among the ranks");
    return Counts(call.size(), view.count / call.size());
  };
  call->input_counts = call.keep(counts(input_splits, input, in, "input_splits"));
  call->output_counts = call.keep(counts(output_splits, output, out, "output_splits"));
  return call.issue(timeout, hints);
}

void set_message(Call& call, nb::handle tensor, int peer, uint64_t tag) {
  const View view =
      call->op == TOWLINE_COLLECTIVE_SEND ? call.input(tensor, "tensor") : call.output(tensor, "tensor");
  call->count = call.scaled(view.count);
  call->root = peer;
  call->tag = tag;
}

// None: any rank, the first that sends.
int source_of(nb::handle peer) { return peer.is_none() ? TOWLINE_ANY_RANK : small_integer(peer, "peer"); }

nb::object send(nb::handle self, nb::handle tensor, int peer, uint64_t tag, bool async_op, nb::handle timeout,
                nb::handle hints, nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_SEND, async_op, stream);
  set_message(call, tensor, peer, tag);
  return call.issue(timeout, hints);
}

nb::object recv(nb::handle self, nb::handle tensor, nb::handle peer, uint64_t tag, bool async_op,
                nb::handle timeout, nb::handle hints, nb::handle stream) {
  Call call(self, TOWLINE_COLLECTIVE_RECV, async_op, stream);
  set_message(call, tensor, source_of(peer), tag);
  return call.issue(timeout, hints);
}

nb::object barrier(nb::handle self, bool async_op, nb::handle timeout, nb::handle hints, nb::handle stream) {
  return Call(self, TOWLINE_COLLECTIVE_BARRIER, async_op, stream).issue(timeout, hints);
}

// ---- batches

struct Batch {
  nb::object communicator;
  towline_batch_t* native = nullptr;
  Held held;
  uint64_t operations = 0;

  Batch() { held.keep_objects(); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() { towline_batch_destroy(native); }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(communicator.ptr());
    return held.visit(visit, arg);
  }
};

nb::object make_batch(nb::handle self) {
  auto* batch = new Batch;
  const nb::object result = give(batch);
  check(towline_batch_create(communicator_of(self).use(), &batch->native), "towline_batch_create");
  batch->communicator = nb::borrow(self);
  return result;
}

void add(Batch& batch, uint32_t op, nb::handle tensor, int peer, uint64_t tag) {
  Call call(batch.communicator, op, true, nb::none());
  set_message(call, tensor, peer, tag);
  (void)(op == TOWLINE_COLLECTIVE_SEND ? batch.held.view(tensor, "tensor")
                                       : batch.held.writable_view(tensor, "tensor"));
  (void)communicator_of(batch.communicator).use();
  check(towline_batch_add(batch.native, call.operator->()), "towline_batch_add");
  ++batch.operations;
}

nb::object issue(Batch& batch, bool async_op, nb::handle timeout, nb::handle hints) {
  CallOptions options(timeout, hints);
  if (!async_op) options.heed_signals();
  Held held = batch.held.take();
  batch.operations = 0;
  towline_work_t* work = nullptr;
  int32_t status = 0;
  {
    const CommunicatorCall call(communicator_of(batch.communicator));
    status = towline_batch_issue(batch.native, options.native(), async_op ? &work : nullptr);
  }
  check_waited(status, "towline_batch_issue");
  if (!async_op) return nb::none();
  return make_work(batch.communicator, work, std::move(held));
}

}  // namespace

uint32_t reduction_of(nb::handle op) {
  if (PyLong_Check(op.ptr())) {
    const long value = PyLong_AsLong(op.ptr());
    if (value >= TOWLINE_REDUCE_SUM && value <= TOWLINE_REDUCE_PREMUL_SUM)
      return static_cast<uint32_t>(value);
  } else if (PyUnicode_Check(op.ptr())) {
    for (uint32_t one = TOWLINE_REDUCE_SUM; one <= TOWLINE_REDUCE_PREMUL_SUM; ++one) {
      if (PyUnicode_CompareWithASCIIString(op.ptr(), towline_reduction_name(one)) == 0) return one;
    }
  }
  raise(TOWLINE_INVALID_ARGUMENT,
        std::string("op: 'sum', 'product', 'min', 'max', 'band', 'bor', 'bxor', 'avg' or "
                    "'premul_sum', not ") +
            nb::repr(op).c_str());
}

void bind_operations(CommunicatorClass& communicator, nb::module_& module) {
  using nb::arg;
  const auto tensor = arg("tensor");
  const auto output = arg("output");
  const auto input = arg("input");
  const auto no_output = arg("output").none() = nb::none();
  const auto op = arg("op") = "sum";
  const auto factor = arg("factor").none() = nb::none();
  const auto async_op = arg("async_op") = false;
  const auto timeout = arg("timeout").none() = nb::none();
  const auto hints = arg("hints").none() = nb::none();
  const auto stream = arg("stream").none() = nb::none();
  const auto only = nb::kw_only();
  communicator
      .def("all_reduce", &all_reduce, tensor, op, only, no_output, factor, async_op, timeout, hints, stream)
      .def("all_reduce_rms_norm", &all_reduce_rms_norm, tensor, arg("residual").none() = nb::none(),
           arg("weight").none() = nb::none(), only, arg("stream"), arg("epsilon") = 1e-6f,
           arg("width").none() = nb::none(), no_output, timeout, hints)
      .def("reduce", &reduce, tensor, arg("root"), op, only, no_output, factor, async_op, timeout, hints,
           stream)
      .def("broadcast", &broadcast, tensor, arg("root"), only, async_op, timeout, hints, stream)
      .def("all_gather", &all_gather, output, input, only, async_op, timeout, hints, stream)
      .def("all_gather_v", &all_gather_v, output, input, only, async_op, timeout, hints, stream)
      .def("reduce_scatter", &reduce_scatter, output, input, op, only, factor, async_op, timeout, hints,
           stream)
      .def("reduce_scatter_v", &reduce_scatter_v, output, input, op, only, factor, async_op, timeout, hints,
           stream)
      .def("gather", &gather, output.none(), input, arg("root"), only, async_op, timeout, hints, stream)
      .def("scatter", &scatter, output, input.none(), arg("root"), only, async_op, timeout, hints, stream)
      .def("all_to_all", &all_to_all, output, input, arg("output_splits").none() = nb::none(),
           arg("input_splits").none() = nb::none(), only, async_op, timeout, hints, stream)
      .def("send", &send, tensor, arg("peer"), arg("tag") = 0, only, async_op, timeout, hints, stream)
      .def("recv", &recv, tensor, arg("peer").none() = nb::none(), arg("tag") = 0, only, async_op, timeout,
           hints, stream)
      .def("barrier", &barrier, only, async_op, timeout, hints, stream)
      .def("batch", &make_batch);
  Class<Batch>(module, "Batch", nb::type_slots(collected<Batch>))
      .def("__len__", [](const Batch& batch) { return batch.operations; })
      .def(
          "send",
          [](Batch& batch, nb::handle one, int peer, uint64_t tag) {
            add(batch, TOWLINE_COLLECTIVE_SEND, one, peer, tag);
          },
          tensor, arg("peer"), arg("tag") = 0)
      .def(
          "recv",
          [](Batch& batch, nb::handle one, int peer, uint64_t tag) {
            add(batch, TOWLINE_COLLECTIVE_RECV, one, peer, tag);
          },
          tensor, arg("peer"), arg("tag") = 0)
      .def("issue", &issue, only, async_op, timeout, hints);
}

}  // namespace towline::python
