// Communicators for C++20: RAII over collectives.h.
//
//   towline::Communicator world;                     // rank and size from torchrun, MPI, PALS or Slurm
//   world.all_reduce(in, out);                       // vectors, arrays or spans of float, double, integers; blocks
//   towline::Work work = world.start(call);          // any towline_collective_t, beside the application
//   work.wait();
//
// Everything throws towline::Error; ownership is as in towline.hpp.
#pragma once

#include <towline/collectives.h>
#include <towline/collectives_gpu.h>
#include <towline/towline.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace towline {
inline namespace v0 {

namespace detail {

// No type but these has one: what is moved as a whole, such as a half from a library, goes as its bytes.
template <class T>
inline constexpr bool kHasDatatype = std::is_same_v<T, float> || std::is_same_v<T, double> ||
                                     (std::is_integral_v<T> && sizeof(T) <= 8);

template <class T>
constexpr uint32_t datatype_of() {
  static_assert(kHasDatatype<T>, "elements are float, double, bool or an integer of up to 64 bits");
  if constexpr (std::is_same_v<T, float>) return TOWLINE_FLOAT32;
  if constexpr (std::is_same_v<T, double>) return TOWLINE_FLOAT64;
  if constexpr (std::is_same_v<T, bool>) return TOWLINE_BOOL;
  constexpr bool kSigned = std::is_signed_v<T>;
  if constexpr (std::is_integral_v<T> && sizeof(T) == 1) return kSigned ? TOWLINE_INT8 : TOWLINE_UINT8;
  if constexpr (std::is_integral_v<T> && sizeof(T) == 2) return kSigned ? TOWLINE_INT16 : TOWLINE_UINT16;
  if constexpr (std::is_integral_v<T> && sizeof(T) == 4) return kSigned ? TOWLINE_INT32 : TOWLINE_UINT32;
  return kSigned ? TOWLINE_INT64 : TOWLINE_UINT64;
}

// A contiguous range of elements: a vector, an array, a span.
template <class R>
concept Elements = std::ranges::contiguous_range<R> && std::ranges::sized_range<R>;
template <class R>
using ElementOf = std::remove_cv_t<std::ranges::range_value_t<R>>;
// One that is written to.
template <class R>
concept WritableElements =
    Elements<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

}  // namespace detail

// An operation that runs beside the application. Destroying the Work does not stop it.
class Work {
 public:
  explicit Work(towline_work_t* work) noexcept : work_(work) {}
  [[nodiscard]] bool done() const noexcept {
    return towline_work_state(work_.get()) >= TOWLINE_WORK_COMPLETED;
  }
  // kOk, or kNotYet if the deadline passes first. Throws the operation's Error.
  Status wait(Deadline deadline = kForever) const {
    const int32_t status = towline_work_wait(work_.get(), deadline.remaining_ns());
    if (status != TOWLINE_NOT_YET) detail::check(status);
    return Status{status};
  }
  [[nodiscard]] towline_work_t* native() const noexcept { return work_.get(); }

 private:
  struct Release {
    void operator()(towline_work_t* work) const noexcept { towline_work_release(work); }
  };
  std::unique_ptr<towline_work_t, Release> work_;
};

class Communicator {
 public:
  Communicator() : Communicator(detail::defaults<towline_communicator_options_t>()) {}
  // Collective.
  explicit Communicator(const towline_communicator_options_t& options) {
    towline_communicator_t* made = nullptr;
    detail::check(towline_communicator_create(&options, &made));
    communicator_.reset(made);
  }
  explicit Communicator(towline_communicator_t* communicator) noexcept : communicator_(communicator) {}

  [[nodiscard]] int rank() const noexcept { return towline_communicator_rank(communicator_.get()); }
  [[nodiscard]] int size() const noexcept { return towline_communicator_size(communicator_.get()); }
  [[nodiscard]] explicit operator bool() const noexcept { return communicator_ != nullptr; }

  void run(const towline_collective_t& call, const towline_collective_options_t* options = nullptr) const {
    detail::check(towline_collective(communicator_.get(), &call, options, nullptr));
  }
  [[nodiscard]] Work start(const towline_collective_t& call,
                           const towline_collective_options_t* options = nullptr) const {
    towline_work_t* work = nullptr;
    detail::check(towline_collective(communicator_.get(), &call, options, &work));
    return Work{work};
  }

  // Into a stream of the communicator's GPU; returns at once (collectives_gpu.h).
  void issue(const towline_collective_t& call, void* stream,
             const towline_collective_options_t* options = nullptr) const {
    detail::check(towline_collective_issue(communicator_.get(), &call, options, stream));
  }
  // all_reduce, addition to a residual and RMSNorm.
  void issue(const towline_collective_norm_t& norm, void* stream,
             const towline_collective_options_t* options = nullptr) const {
    detail::check(towline_collective_issue_norm(communicator_.get(), &norm, options, stream));
  }

  void barrier() const { detail::check(towline_barrier(communicator_.get(), nullptr, nullptr)); }
  // `in` and `out` may be the same memory.
  template <detail::Elements In, detail::WritableElements Out>
  requires std::same_as<detail::ElementOf<In>, detail::ElementOf<Out>>
  void all_reduce(const In& input, Out&& output, uint32_t reduction = TOWLINE_REDUCE_SUM) const {
    using T = detail::ElementOf<In>;
    const std::span<const T> in{std::ranges::data(input), std::ranges::size(input)};
    const std::span<T> out{std::ranges::data(output), std::ranges::size(output)};
    need(in.size() == out.size(), "all_reduce: input and output differ in size");
    detail::check(towline_all_reduce(communicator_.get(), in.data(), out.data(), in.size(),
                                     detail::datatype_of<T>(), reduction, nullptr, nullptr));
  }
  template <detail::WritableElements Buffer>
  void broadcast(Buffer&& elements, int root) const {
    using T = detail::ElementOf<Buffer>;
    const std::span<T> buffer{std::ranges::data(elements), std::ranges::size(elements)};
    detail::check(towline_broadcast(communicator_.get(), buffer.data(), buffer.size(),
                                    detail::datatype_of<T>(), root, nullptr, nullptr));
  }
  template <detail::Elements In, detail::WritableElements Out>
  requires std::same_as<detail::ElementOf<In>, detail::ElementOf<Out>>
  void all_gather(const In& input, Out&& output) const {
    using T = detail::ElementOf<In>;
    const std::span<const T> in{std::ranges::data(input), std::ranges::size(input)};
    const std::span<T> out{std::ranges::data(output), std::ranges::size(output)};
    need(out.size() == in.size() * static_cast<size_t>(size()),
         "all_gather: the output has no room for all parts");
    detail::check(towline_all_gather(communicator_.get(), in.data(), out.data(), in.size(),
                                     detail::datatype_of<T>(), nullptr, nullptr));
  }
  template <detail::Elements In, detail::WritableElements Out>
  requires std::same_as<detail::ElementOf<In>, detail::ElementOf<Out>>
  void reduce_scatter(const In& input, Out&& output, uint32_t reduction = TOWLINE_REDUCE_SUM) const {
    using T = detail::ElementOf<In>;
    const std::span<const T> in{std::ranges::data(input), std::ranges::size(input)};
    const std::span<T> out{std::ranges::data(output), std::ranges::size(output)};
    need(in.size() == out.size() * static_cast<size_t>(size()),
         "reduce_scatter: the input is not a part for each rank");
    detail::check(towline_reduce_scatter(communicator_.get(), in.data(), out.data(), out.size(),
                                         detail::datatype_of<T>(), reduction, nullptr, nullptr));
  }
  template <detail::Elements In>
  void send(const In& input, int to, uint64_t tag = 0) const {
    using T = detail::ElementOf<In>;
    const std::span<const T> in{std::ranges::data(input), std::ranges::size(input)};
    detail::check(towline_send(communicator_.get(), in.data(), in.size(), detail::datatype_of<T>(), to, tag,
                               nullptr, nullptr));
  }
  template <detail::WritableElements Out>
  void receive(Out&& output, int from, uint64_t tag = 0) const {
    using T = detail::ElementOf<Out>;
    const std::span<T> out{std::ranges::data(output), std::ranges::size(output)};
    detail::check(towline_recv(communicator_.get(), out.data(), out.size(), detail::datatype_of<T>(), from,
                               tag, nullptr, nullptr));
  }

  // Collective; empty if this rank gives no ranks.
  [[nodiscard]] Communicator split(std::span<const int32_t> ranks, const char* name = nullptr) const {
    towline_communicator_t* made = nullptr;
    detail::check(
        towline_communicator_split(communicator_.get(), ranks.data(), ranks.size(), name, 0, &made));
    return Communicator{made};
  }
  void abort(const std::string& reason = {}) const {
    detail::check(towline_communicator_abort(communicator_.get(), reason.c_str()));
  }
  [[nodiscard]] towline_communicator_t* native() const noexcept { return communicator_.get(); }

 private:
  static void need(bool holds, const char* what) {
    if (!holds) throw Error(Status::kInvalidArgument, what);
  }
  struct Destroy {
    void operator()(towline_communicator_t* communicator) const noexcept {
      towline_communicator_destroy(communicator);
    }
  };
  std::unique_ptr<towline_communicator_t, Destroy> communicator_;
};

}  // namespace v0
}  // namespace towline
