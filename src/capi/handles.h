// The objects behind the C API's opaque pointers. Handles outlive their agent: all except lists hold it,
// closed or not.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "agent/agent.h"
#include "agent/block_list.h"
#include "agent/event_queue.h"
#include "agent/exporter.h"
#include "agent/transfer.h"
#include "base/error.h"
#include "directory/directory.h"
#include "memory/shared_memory.h"
#include "towline/towline.h"

struct towline_agent {
  std::shared_ptr<towline::Agent> agent;
  std::shared_ptr<towline::DirectoryHost> directories;
  std::unique_ptr<towline::Exporter> exporter;  // of the setting telemetry.prometheus
  std::mutex closing{};
};
struct towline_memory {
  std::unique_ptr<towline::SharedMemory> memory;
};
struct towline_region {
  std::shared_ptr<towline::Agent> agent;
  std::shared_ptr<towline::Region> region;
};
struct towline_peer {
  std::shared_ptr<towline::Agent> agent;
  towline::PeerHold peer;
};
// A list in one piece of memory, since programs make two for every transfer. It does not hold its agent; its
// users do.
struct towline_block_list final : towline::BlockList {
  towline_block_list(towline::Id by, towline::Peer* peer) : BlockList(&own, peer), agent(by) {}
  using BlockList::add_remote_region;

  towline::ResolvedList own;
  std::shared_ptr<const towline::RegionLabel>
      label;                                 // of the region that all of it was made from; null: none
  const towline::Id agent;                   // its incarnation
  std::shared_ptr<towline::BlockList> self;  // until it is destroyed; transfers keep the list longer
};
struct towline_queue {
  std::shared_ptr<towline::Agent> agent;
  towline::EventQueue* queue;
  bool own;  // the agent's
};
struct towline_counter {
  std::shared_ptr<towline::Agent> agent;
  uint64_t key;
};
// A towline_transfer is a towline::Transfer itself: its calls are the data path.

namespace towline::capi {

// Sets the thread's message for towline_last_error; returns `code`.
int32_t refuse(Status code, std::string text) noexcept;
// The same: "<function>: <why>".
int32_t refuse(const char* function, Status code, const char* why) noexcept;
// What the C++ library throws: of threads, when the system gives none.
[[gnu::cold]] int32_t refuse(const char* function, const std::system_error& error) noexcept;

// "<function>: <what> is null".
[[gnu::cold]] int32_t refuse_null(const char* function, const char* what) noexcept;

// What a call gives back to its caller; an error comes with a sentence for towline_last_error. TOWLINE_AGAIN and
// TOWLINE_NOT_YET are no failures. `why`: "" for the status's own text.
[[gnu::cold]] int32_t answer_error(const char* function, Status status, const std::string& why) noexcept;
inline int32_t answer(const char* function, Status status, const std::string& why = {}) noexcept {
  if (!is_error(status)) [[likely]]
    return static_cast<int32_t>(status);
  return answer_error(function, status, why);
}

// Runs the control path of a call: exceptions become a status and a message that begins with the call's name. A call
// that gives an int32_t has left its message itself.
template <class Call>
int32_t guard(const char* function, Call&& call) noexcept {
  try {
    if constexpr (std::is_same_v<std::invoke_result_t<Call>, Status>)
      return answer(function, call());
    else
      return call();
  } catch (const Error& error) {
    return refuse(function, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return refuse(function, Status::kOutOfMemory, "out of memory");
  } catch (const std::system_error& error) {
    return refuse(function, error);
  } catch (const std::exception& error) {
    return refuse(function, Status::kInternal, error.what());
  }
}

[[noreturn, gnu::cold]] void fail_null(const char* what);
inline void need(const void* pointer, const char* what) {
  if (pointer == nullptr) [[unlikely]]
    fail_null(what);
}

// The layout that the list was made with; null: none.
[[nodiscard]] inline const towline_layout_t* layout_of(const towline_block_list_t& list) noexcept {
  return list.label != nullptr && list.label->shaped() ? &list.label->layout : nullptr;
}
// Throws Error(kMismatch) for lists whose layouts have other elements or numbers of dimensions. "": all of one can be
// moved to all of the other; else why not.
[[nodiscard]] std::string check_layouts(const towline_block_list_t& one, const towline_block_list_t& other);

// Null: the agent's own. Throws Error for a queue of another agent.
[[nodiscard]] EventQueue& queue_for(Agent& agent, const towline_queue_t* queue);

// The keys of some of the agent's regions. Throws Error for one that is null or another agent's.
[[nodiscard]] std::vector<uint64_t> keys_of(const Agent& agent, towline_region_t* const* regions,
                                            size_t count);

// Two lists as the core has them: its own side and the far one, and in which direction bytes move.
struct Sides {
  bool reads = false;  // from the far side
  std::shared_ptr<BlockList> local;
  std::shared_ptr<BlockList> remote;

  [[nodiscard]] uint32_t op() const noexcept { return reads ? TOWLINE_READ : TOWLINE_WRITE; }
};
// A peer's list is the far side; of two lists of this agent it is the one with storage. Throws Error for lists that
// are null, of another agent, or both of peers.
[[nodiscard]] Sides sides_of(Agent& agent, const towline_block_list_t* from, const towline_block_list_t* to);
// All zero: null, for every block.
[[nodiscard]] inline const towline_picks_t* picks_of(const towline_picks_t& picks) noexcept {
  const bool all = picks.indices == nullptr && picks.count == 0 && picks.step == 0 && picks.start == 0;
  return all ? nullptr : &picks;
}
[[nodiscard]] inline PickPair pick_pair(bool reads, const towline_picks_t& from,
                                        const towline_picks_t& to) noexcept {
  return {picks_of(reads ? to : from), picks_of(reads ? from : to)};
}

// Throws Error for fields beyond the first `known` bytes that are not 0: they ask for something that would not be done.
inline void refuse_newer_fields(const void* given, size_t bytes, size_t known, const char* what) {
  const auto* const byte = static_cast<const unsigned char*>(given);
  for (size_t i = known; i < bytes; ++i)
    if (byte[i] != 0)
      fail(Status::kUnsupported,
           "{} sets a field at byte {} that this version of the library does not have: it knows {} bytes of "
           "the struct",
           what, i, known);
}

// Copies a caller's options as far as its version of the struct goes; null gives the defaults. Throws Error for a size
// that no version had, and for fields of a newer version that are not 0: they ask for something that would not be done.
template <class Options>
Options take_options(const Options* given, const char* what) {
  Options options = {};
  options.struct_size = sizeof options;
  if (given == nullptr) return options;
  if (given->struct_size < sizeof(size_t) || given->struct_size > 4096) {
    fail(Status::kInvalidArgument, "{}.struct_size is {}; set it to sizeof the struct", what,
         given->struct_size);
  }
  refuse_newer_fields(given, given->struct_size, sizeof options, what);
  std::memcpy(&options, given, std::min(given->struct_size, sizeof options));
  options.struct_size = sizeof options;
  return options;
}

// Elements of arrays that the caller owns have the size that they have in its version of the headers. These are the
// sizes of the first version, which every caller has.
inline constexpr size_t kLeastRegionInfoBytes = 48;
inline constexpr size_t kLeastDirectoryEntryBytes = 32;
inline constexpr size_t kLeastCompletionBytes = 32;
inline constexpr size_t kLeastNoticeBytes = 48;
inline constexpr size_t kLeastEventBytes = 64;
inline constexpr size_t kMostElementBytes = 4096;

inline void check_element(size_t bytes, size_t least, const char* what) {
  if (bytes < least || bytes > kMostElementBytes)
    fail(Status::kInvalidArgument, "{} is {}; give sizeof the struct", what, bytes);
}

// Writes element `index` as far as the caller knows the struct; fields of a newer version are 0. The size has been
// checked.
template <class Element>
void give_element(void* array, size_t element_bytes, size_t index, const Element& value) noexcept {
  auto* const at = static_cast<unsigned char*>(array) + index * element_bytes;
  std::memcpy(at, &value, std::min(element_bytes, sizeof value));
  if (element_bytes > sizeof value) std::memset(at + sizeof value, 0, element_bytes - sizeof value);
}

// The caller's elements; `copies` holds them if its version of the struct is another. Throws Error as take_options.
template <class Element>
std::span<const Element> take_elements(const Element* given, size_t element_bytes, size_t count,
                                       std::vector<Element>& copies, const char* what) {
  if (element_bytes == sizeof(Element)) return {given, count};
  // The first version of these structs is the present one.
  check_element(element_bytes, sizeof(Element), what);
  copies.resize(count);
  const auto* at = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = 0; i < count; ++i, at += element_bytes) {
    std::memcpy(&copies[i], at, sizeof(Element));
    if (std::any_of(at + sizeof(Element), at + element_bytes, [](unsigned char byte) { return byte != 0; }))
      fail(Status::kUnsupported, "{}[{}] sets a field that this version of the library does not have", what,
           i);
  }
  return copies;
}

[[nodiscard]] inline towline_region_info_t describe(const towline_region_ref& ref) noexcept {
  return {ref.key, ref.address, ref.bytes, ref.device, ref.kind, ref.access, ref.flags, 0};
}

// Text and blobs of unknown size: writes what fits (text with NUL) and the whole size. Without `needed` all
// must fit.
Status give(const void* data, size_t bytes, bool text, void* out, size_t capacity, size_t* needed);

inline EventQueue& queue_for(Agent& agent, const towline_queue_t* queue) {
  if (queue == nullptr) return agent.own_queue();
  if (queue->agent.get() != &agent)
    fail(Status::kInvalidArgument, "the queue belongs to agent '{}', not to agent '{}'", queue->agent->name(),
         agent.name());
  return *queue->queue;
}

}  // namespace towline::capi
