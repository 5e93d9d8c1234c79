// Works: asynchronous operations.
#include <towline/collectives_gpu.h>

#include "communicator.h"

#include <memory>
#include <utility>

namespace towline::python {

namespace {

struct Work {
  nb::object communicator;
  Pending* pending = nullptr;

  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() {
    const Turn turn;
    if (!pending->listed || towline_work_state(pending->native) >= TOWLINE_WORK_COMPLETED) {
      communicator_of(communicator).drop(pending);
    } else {
      pending->abandoned = true;
    }
  }
  [[nodiscard]] towline_work_t* use() const noexcept { return pending->native; }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(communicator.ptr());
    return 0;
  }
};

// Raises the operation's error.
void raise_outcome(towline_work_t* native, int32_t status) {
  const std::string sentence = towline_work_error(native);
  raise(status, sentence.empty()
                    ? std::string(towline_collective_op_name(towline_work_op(native))) + " failed"
                    : sentence);
}

void wait(const Work& work, nb::handle timeout) {
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  towline_work_t* const native = work.use();
  int32_t status = towline_work_state(native) >= TOWLINE_WORK_COMPLETED ? towline_work_poll(native)
                                                                        : int32_t{TOWLINE_NOT_YET};
  while (status == TOWLINE_NOT_YET) {
    {
      const CommunicatorCall call(communicator_of(work.communicator));
      status = towline_work_wait(native, deadline.slice());
    }
    if (status != TOWLINE_NOT_YET) break;
    check_signals();
    if (deadline.passed()) {
      raise_not_yet(std::string(towline_collective_op_name(towline_work_op(native))) +
                    " has not ended yet; it goes on");
    }
  }
  if (status < 0) raise_outcome(native, status);
}

int32_t poll(const Work& work) {
  if (towline_work_state(work.use()) >= TOWLINE_WORK_COMPLETED) return towline_work_poll(work.use());
  if (!work.pending->streamed || !work.pending->listed) return TOWLINE_IN_PROGRESS;
  const CommunicatorCall call(communicator_of(work.communicator));
  return towline_work_poll(work.use());
}

void wait_on(const Work& work, nb::handle stream) {
  void* const native = stream_of(stream);
  int32_t status = 0;
  {
    const CommunicatorCall call(communicator_of(work.communicator));
    status = towline_work_wait_on(work.use(), native);
  }
  check(status, "towline_work_wait_on");
}

struct OnEvent {
  OnEvent(nb::object communicator, nb::object function)
      : communicator(std::move(communicator)), function(std::move(function)) {}
  nb::object communicator;
  nb::object function;
};

void called(void* context, towline_work_t*) {
  const WithGil gil;
  if (!gil) return;
  const std::unique_ptr<OnEvent> event(static_cast<OnEvent*>(context));
  call_from_anywhere(std::move(event->communicator), std::move(event->function), nullptr);
}

void on(const Work& work, uint32_t event, nb::handle function) {
  towline_work_t* const native = work.use();
  auto given = std::make_unique<OnEvent>(work.communicator, nb::borrow(function));
  int32_t status = 0;
  {
    const CommunicatorCall call(communicator_of(work.communicator));
    status = towline_work_on(native, event, &called, given.get());
  }
  if (status >= 0) (void)given.release();  // it may have been called, and be gone
  check(status, "towline_work_on");
}

}  // namespace

nb::object make_work(nb::handle communicator, towline_work_t* native, Held&& held, bool streamed) {
  auto* pending = new Pending{native, std::move(held)};
  pending->streamed = streamed;
  communicator_of(communicator).sweep();
  communicator_of(communicator).add(pending);
  auto* work = new Work;
  work->communicator = nb::borrow(communicator);
  work->pending = pending;
  return give(work);
}

void bind_work(nb::module_& module) {
  Class<Work>(module, "Work", nb::type_slots(collected<Work>), nb::is_weak_referenceable())
      .def("wait", &wait, nb::arg("timeout").none() = nb::none())
      .def("wait_on", &wait_on, nb::arg("stream"))
      .def("poll", [](const Work& work) { return status_object(poll(work)); })
      .def_prop_ro("done", [](const Work& work) { return poll(work) != TOWLINE_IN_PROGRESS; })
      .def_prop_ro("state",
                   [](const Work& work) {
                     static constexpr const char* kNames[] = {"not_started", "in_progress", "completed",
                                                              "timed_out", "error"};
                     return kNames[towline_work_state(work.use())];
                   })
      .def_prop_ro("source",
                   [](const Work& work) -> nb::object {
                     const int32_t rank = towline_work_source(work.use());
                     return rank == TOWLINE_ANY_RANK ? nb::none() : nb::cast(rank);
                   })
      .def_prop_ro("error", [](const Work& work) { return text(towline_work_error(work.use())); })
      .def_prop_ro("op",
                   [](const Work& work) { return towline_collective_op_name(towline_work_op(work.use())); })
      .def_prop_ro(
          "timeout",
          [](const Work& work) { return 1e-9 * static_cast<double>(towline_work_timeout(work.use())); })
      .def(
          "on_start", [](const Work& work, nb::handle function) { on(work, TOWLINE_WORK_START, function); },
          nb::arg("function"))
      .def(
          "on_end", [](const Work& work, nb::handle function) { on(work, TOWLINE_WORK_END, function); },
          nb::arg("function"))
      .def("__await__", [](nb::handle self) {
        return nb::module_::import_("towline.collectives").attr("_wait_for")(self);
      });
}

}  // namespace towline::python
