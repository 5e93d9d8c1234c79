// The values of the C++ API: errors, times, enumerations, options of agents and regions, views of arguments, blocks.
// Included by towline.hpp.
#pragma once

#include <towline/layout.h>
#include <towline/status.h>
#include <towline/towline.h>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace towline {
inline namespace v0 {

// The exception of the control path: a code to branch on, and a message with what was tried and the values.
class Error : public std::runtime_error {
 public:
  Error(Status code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] Status code() const noexcept { return code_; }

 private:
  Status code_;
};

namespace detail {

// Of what was waited for. `sentence` may be empty.
[[nodiscard]] inline Error failure(Status status, std::string sentence) {
  if (status == Status::kNotYet) sentence = "the wait has ended, and what it waits for goes on";
  return {status, sentence.empty() ? std::string{status_text(status)} : sentence};
}

}  // namespace detail

// "0.1.0", of the library that is loaded.
[[nodiscard]] inline std::string_view version() noexcept { return towline_version(); }

// The message of this thread's last failure, "" without one. Valid until the thread's next call that fails.
[[nodiscard]] inline std::string_view last_error() noexcept { return towline_last_error(); }

// Times

namespace detail {

// 0 for what is negative, TOWLINE_FOREVER for what is too long.
template <class Rep, class Period>
[[nodiscard]] constexpr uint64_t nanoseconds(std::chrono::duration<Rep, Period> time) noexcept {
  using Seconds = std::chrono::duration<double>;
  if (time <= time.zero()) return 0;
  if (Seconds{time} >= Seconds{std::chrono::nanoseconds::max()}) return TOWLINE_FOREVER;
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

// Of an option struct of the C API, where 0 is the default: one that has passed is as short as can be.
[[nodiscard]] constexpr uint64_t timeout_option(
    const std::optional<std::chrono::nanoseconds>& timeout) noexcept {
  return timeout ? std::max<uint64_t>(nanoseconds(*timeout), 1) : 0;
}
// Of an argument of the C API.
[[nodiscard]] constexpr uint64_t timeout_argument(
    const std::optional<std::chrono::nanoseconds>& timeout) noexcept {
  return timeout ? nanoseconds(*timeout) : TOWLINE_DEFAULT_TIMEOUT;
}

}  // namespace detail

// A point of the steady clock, or never. A duration (5s) counts from the moment at which the Deadline is made, so that
// several waits with one Deadline end together.
class Deadline {
 public:
  template <class Rep, class Period>
  Deadline(std::chrono::duration<Rep, Period> from_now) noexcept  // NOLINT: implicit on purpose
      : at_ns_(after(detail::nanoseconds(from_now))) {}
  template <class Duration>
  constexpr Deadline(std::chrono::time_point<std::chrono::steady_clock, Duration> at) noexcept  // NOLINT
      : at_ns_(std::max<uint64_t>(detail::nanoseconds(at.time_since_epoch()), 1)) {}

  constexpr Deadline() noexcept = default;  // never

  // As a `deadline_ns` of the C API, which is on CLOCK_MONOTONIC.
  [[nodiscard]] constexpr uint64_t absolute_ns() const noexcept { return at_ns_; }
  // As a `timeout_ns` of the C API; 0 if it has passed.
  [[nodiscard]] uint64_t remaining_ns() const noexcept {
    if (at_ns_ == TOWLINE_FOREVER) return at_ns_;
    const uint64_t now = now_ns();
    return at_ns_ > now ? at_ns_ - now : 0;
  }

 private:
  static uint64_t now_ns() noexcept {
    return detail::nanoseconds(std::chrono::steady_clock::now().time_since_epoch());
  }
  static uint64_t after(uint64_t from_now_ns) noexcept {
    if (from_now_ns == TOWLINE_FOREVER) return from_now_ns;
    const uint64_t now = now_ns();
    return from_now_ns > TOWLINE_FOREVER - now ? TOWLINE_FOREVER : now + from_now_ns;
  }

  uint64_t at_ns_ = TOWLINE_FOREVER;
};

inline constexpr Deadline kForever{};

// How long the end of a region without an owner waits for what uses its memory; deregister() tells whether it was enough.
inline constexpr std::chrono::seconds kDestructorTimeout{30};

// Enumerations

enum class Kind : uint32_t {
  kDram = TOWLINE_MEMORY_DRAM,
  kVram = TOWLINE_MEMORY_VRAM,
  kFile = TOWLINE_MEMORY_FILE,
  kBlock = TOWLINE_MEMORY_BLOCK,
  kObject = TOWLINE_MEMORY_OBJECT,
};

// What peers may do with a region. Access::kRead | Access::kWrite is Access::kAll.
enum class Access : uint32_t {
  kNone = TOWLINE_ACCESS_NONE,  // for this agent's use only: peers are not told of it, and can't reach it
  kRead = TOWLINE_ACCESS_READ,
  kWrite = TOWLINE_ACCESS_WRITE,
  kAll = TOWLINE_ACCESS_ALL,
};
[[nodiscard]] constexpr Access operator|(Access a, Access b) noexcept {
  return static_cast<Access>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
[[nodiscard]] constexpr Access operator&(Access a, Access b) noexcept {
  return static_cast<Access>(static_cast<uint32_t>(a) & static_cast<uint32_t>(b));
}
[[nodiscard]] constexpr Access operator~(Access a) noexcept {
  return static_cast<Access>(~static_cast<uint32_t>(a) & TOWLINE_ACCESS_ALL);
}
constexpr Access& operator|=(Access& a, Access b) noexcept { return a = a | b; }
constexpr Access& operator&=(Access& a, Access b) noexcept { return a = a & b; }

enum class Progress : uint32_t { kHosted = TOWLINE_PROGRESS_HOSTED, kCaller = TOWLINE_PROGRESS_CALLER };

enum class Health : uint32_t {
  kUnknown = TOWLINE_HEALTH_UNKNOWN,
  kAlive = TOWLINE_HEALTH_ALIVE,
  kSuspect = TOWLINE_HEALTH_SUSPECT,
  kLost = TOWLINE_HEALTH_LOST,
};

enum class Fence : uint32_t {
  kLocal = TOWLINE_FENCE_LOCAL,
  kRemote = TOWLINE_FENCE_REMOTE,
  kBoth = TOWLINE_FENCE_LOCAL | TOWLINE_FENCE_REMOTE,
};

// Options, for designated initialisers: {.workers = 2, .listen = "127.0.0.1:0"}

struct AgentOptions {
  Progress progress = Progress::kHosted;
  uint32_t workers = 0;                        // threads that make progress, 1 to 8; 0: 1
  std::string listen{};                        // "host:port[,..]", "none"; empty: "127.0.0.1:0"
  std::string advertise{};                     // the address for peers instead; empty: detected
  std::string backends{};                      // comma-separated, in order of preference; empty: all usable
  std::string config{};                        // TOML text over environment and file
  std::chrono::nanoseconds default_timeout{};  // for calls without one; 0: 30 s
};

struct MemoryOptions {
  bool huge_pages = false;  // huge pages, or fail
};

// Elements of equal length in up to four nested dimensions, outermost first.
struct Layout : towline_layout_t {
  // Without gaps: Layout::dense(page_bytes, {layers, pages}).
  [[nodiscard]] static Layout dense(uint64_t element_bytes, std::initializer_list<uint64_t> counts) {
    return strided(element_bytes, counts, {});
  }
  // `strides` in bytes, one for each of `counts`.
  [[nodiscard]] static Layout strided(uint64_t element_bytes, std::initializer_list<uint64_t> counts,
                                      std::initializer_list<uint64_t> strides) {
    if (counts.size() > TOWLINE_MAX_DIMENSIONS || (strides.size() != 0 && strides.size() != counts.size()))
      throw Error{Status::kInvalidArgument, "Layout: at most four counts, and as many strides"};
    Layout layout{};
    layout.struct_size = sizeof(towline_layout_t);
    layout.element_bytes = element_bytes;
    layout.dimensions = static_cast<uint32_t>(counts.size());
    std::ranges::copy(counts, layout.count);
    std::ranges::copy(strides, layout.stride);
    return layout;
  }
};

// A paged cache: `layers` times `pages` pages.
[[nodiscard]] inline Layout paged(uint64_t layers, uint64_t pages, uint64_t page_bytes) {
  return Layout::dense(page_bytes, {layers, pages});
}

struct RegionOptions {
  Access access = Access::kNone;  // what peers may do
  bool guarded = false;           // reached only through paths where this agent checks every access
  bool share = false;  // page-aligned private memory: move it in place onto shared memory, for peers to map
  std::string name{};  // by which peers find it; empty: none
  std::optional<Layout> layout{};  // of a region with a name
};

// Bytes and picks: arguments. Those that options keep hold on to temporaries, and to nothing else.

namespace detail {

template <class Range>
concept Array = std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range>;

template <class Range>
using Element = std::ranges::range_value_t<Range>;

template <class Range>
concept IndexArray = Array<Range> && std::integral<Element<Range>> &&
    (sizeof(Element<Range>) == 4 || sizeof(Element<Range>) == 8);

template <class Text>
concept TextLike = std::convertible_to<const Text&, std::string_view>;

template <class Range>
concept ByteArray = Array<Range> && sizeof(Element<Range>) == 1 && !TextLike<Range>;

template <class>
inline constexpr bool is_initializer_list = false;
template <class Element>
inline constexpr bool is_initializer_list<std::initializer_list<Element>> = true;

// What an argument of this type refers to ends with it: a temporary string or vector, but no span.
template <class Argument>
inline constexpr bool is_temporary =
    std::is_class_v<std::remove_cvref_t<Argument>> && !std::is_lvalue_reference_v<Argument> &&
    !std::ranges::borrowed_range<Argument>;

}  // namespace detail

// Bytes from text or from any contiguous range of one-byte values, for the length of a call.
class BytesView {
 public:
  constexpr BytesView() noexcept = default;
  template <detail::TextLike Text>
  constexpr BytesView(const Text& text) noexcept  // NOLINT: implicit on purpose
      : BytesView(std::string_view{text}.data(), std::string_view{text}.size()) {}
  template <detail::ByteArray Bytes>
  constexpr BytesView(const Bytes& bytes) noexcept  // NOLINT: the same
      : BytesView(std::ranges::data(bytes), std::ranges::size(bytes)) {}
  constexpr BytesView(const void* data, size_t size) noexcept : data_(data), size_(size) {}

  [[nodiscard]] constexpr const void* data() const noexcept { return data_; }
  [[nodiscard]] constexpr size_t size() const noexcept { return size_; }

 private:
  const void* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes in options, which a program may store: a view, except that a temporary string or container is kept.
class KeptBytes {
 public:
  KeptBytes() noexcept = default;
  KeptBytes(BytesView bytes) noexcept : bytes_(bytes) {}  // NOLINT: implicit on purpose
  template <class Bytes>
  requires(std::convertible_to<const std::remove_cvref_t<Bytes>&, BytesView> &&
           !std::same_as<std::remove_cvref_t<Bytes>, KeptBytes> &&
           !std::same_as<std::remove_cvref_t<Bytes>, BytesView> &&
           !detail::is_initializer_list<std::remove_cvref_t<Bytes>>)
      KeptBytes(Bytes&& bytes) {  // NOLINT: the same
    if constexpr (detail::is_temporary<Bytes>) {
      auto kept = std::make_shared<const std::remove_cvref_t<Bytes>>(std::forward<Bytes>(bytes));
      bytes_ = BytesView{*kept};
      kept_ = std::move(kept);
    } else {
      bytes_ = BytesView{bytes};
    }
  }

  // Null without bytes, wherever they came from.
  [[nodiscard]] const void* data() const noexcept { return size() != 0 ? bytes_.data() : nullptr; }
  [[nodiscard]] size_t size() const noexcept { return bytes_.size(); }

 private:
  BytesView bytes_;
  std::shared_ptr<const void> kept_;
};

// Blocks start, start + step, .. of a list.
struct Range {
  uint64_t start = 0;
  uint64_t step = 1;
  uint64_t count = 0;
};

// Every block of a list, in order.
struct All {};
inline constexpr All all{};

// Which blocks of a list, in order: `all`, a Range, or 4- or 8-byte indices (vector, span). Indices are not copied and must
// live as long as this, except that a temporary container is kept.
class Picks {
 public:
  Picks(All) noexcept {}       // NOLINT: implicit on purpose
  Picks(Range range) noexcept  // NOLINT: the same
      : picks_{nullptr, 0, 0, range.start, range.count == 0 ? 1 : range.step, range.count},
        all_(false) {}  // all zero would mean every block
  template <class Indices>
  requires(detail::IndexArray<std::remove_cvref_t<Indices>> &&
           !detail::is_initializer_list<std::remove_cvref_t<Indices>>)
      Picks(Indices&& indices)  // NOLINT: the same
  noexcept(!detail::is_temporary<Indices>) : all_(false) {
    if constexpr (detail::is_temporary<Indices>) {
      auto kept = std::make_shared<const std::remove_cvref_t<Indices>>(std::forward<Indices>(indices));
      point_to(*kept);
      kept_ = std::move(kept);
    } else {
      point_to(indices);
    }
  }

  // Null for all.
  [[nodiscard]] const towline_picks_t* get() const noexcept { return all_ ? nullptr : &picks_; }
  // What keeps a temporary's indices; null: nothing does.
  [[nodiscard]] const std::shared_ptr<const void>& kept() const noexcept { return kept_; }

 private:
  template <class Indices>
  void point_to(const Indices& indices) noexcept {
    picks_.indices = indices_or_dummy(std::ranges::data(indices));
    picks_.index_bytes = sizeof(detail::Element<Indices>);
    picks_.count = std::ranges::size(indices);
  }
  // An empty vector has no data, and null would mean a range; with a count of 0 the dummy is never read.
  static constexpr const void* indices_or_dummy(const void* indices) noexcept {
    return indices != nullptr ? indices : &kNothing;
  }
  static constexpr uint64_t kNothing = 0;

  towline_picks_t picks_{};
  bool all_ = true;
  std::shared_ptr<const void> kept_;
};

// A piece of memory to register. Made by dram() and similar functions.
struct MemoryView {
  void* address = nullptr;
  uint64_t bytes = 0;
  Kind kind = Kind::kDram;
  uint64_t device = 0;
};

// Blocks

// One contiguous length repeated over up to four nested dimensions. Built from the outside in:
//
//   Blocks::at(cache, page_bytes).repeat(layers, layer_stride).repeat(pages, page_bytes)
//
// counts page 0 of layer 0, page 1 of layer 0, .. The address is this process's, or the peer's for its lists.
struct Blocks : towline_blocks_t {
  Blocks() noexcept : towline_blocks_t{} {}

  template <std::integral Address>  // of any integer, so that 0 is a number and no pointer
  [[nodiscard]] static Blocks at(Address address, uint64_t length, Kind kind = Kind::kDram,
                                 uint64_t device = 0) noexcept {
    Blocks blocks;
    blocks.address = static_cast<uint64_t>(address);
    blocks.length = length;
    blocks.kind = static_cast<uint32_t>(kind);
    blocks.device = device;
    return blocks;
  }
  [[nodiscard]] static Blocks at(const void* address, uint64_t length, Kind kind = Kind::kDram,
                                 uint64_t device = 0) noexcept {
    return at(reinterpret_cast<uint64_t>(address), length, kind, device);
  }

  // Repeats the blocks `times` times, `stride_bytes` apart, as a new innermost dimension, at most the fourth.
  [[nodiscard]] Blocks repeat(uint64_t times, uint64_t stride_bytes) const {
    if (dimensions >= TOWLINE_MAX_DIMENSIONS) {
      throw Error{Status::kLimitExceeded, "Blocks::repeat: blocks have at most four dimensions"};
    }
    Blocks more = *this;
    more.count[dimensions] = times;
    more.stride[dimensions] = stride_bytes;
    more.dimensions = dimensions + 1;
    return more;
  }

  // The number of blocks.
  [[nodiscard]] uint64_t size() const noexcept {
    uint64_t product = 1;
    for (uint32_t dimension = 0; dimension < dimensions; ++dimension) product *= count[dimension];
    return product;
  }
};
static_assert(sizeof(Blocks) == sizeof(towline_blocks_t), "arrays of Blocks are handed to C");

// `bytes` cut into contiguous blocks of `block_bytes`, which must divide them: nothing is left out.
[[nodiscard]] inline Blocks blocks_of(const void* address, uint64_t bytes, uint64_t block_bytes) {
  if (block_bytes == 0) throw Error{Status::kInvalidArgument, "blocks_of: block_bytes is zero"};
  if (bytes % block_bytes != 0)
    throw Error{Status::kInvalidArgument, "blocks_of: " + std::to_string(bytes) +
                                              " bytes are no multiple of the blocks' " +
                                              std::to_string(block_bytes)};
  return Blocks::at(address, block_bytes).repeat(bytes / block_bytes, block_bytes);
}

}  // namespace v0
}  // namespace towline
