// Named, shaped regions for C++20: layout.h as views. Included by towline.hpp.
//
//   auto kv = agent.register_memory(dram(cache), {.name = "kv", .layout = paged(layers, pages, page_bytes)});
//   auto there = agent.connect("10.0.0.7:7777").region("kv");
//   agent.copy(kv[layer][my_pages], there[layer][their_pages]).wait();           // pages of one layer
//   agent.copy(kv.view().select(1, my_pages), there.select(1, their_pages)).wait();   // of every layer
#pragma once

#include <towline/layout.h>
#include <towline/plan.hpp>
#include <towline/towline.hpp>

#include <algorithm>
#include <mutex>

namespace towline {
inline namespace v0 {

namespace detail {

// A list of all elements of one region, shared by its views.
struct Shaped {
  BlockList list;
  Layout layout;      // dimensions 0: the region has none, and the list one block
  std::string name;   // for messages
  std::string owner;  // the peer's incarnation; empty: this agent
  uint64_t key;       // of the region
};

}  // namespace detail

// Elements of a region: all of them, or narrowed dimension by dimension. A value that owns the list. Arrays that it was
// narrowed by must live as long as it, except that temporary ones are kept.
class View {
 public:
  // An index fixes the first dimension that nothing has narrowed yet, picks narrow it.
  template <std::integral Index>
  [[nodiscard]] View operator[](Index index) const {
    const uint32_t dimension = first_open();
    if (std::cmp_less(index, 0) || std::cmp_greater_equal(index, shaped_->layout.count[dimension]))
      throw Error{Status::kOutOfRange, "region '" + shaped_->name + "': index " + std::to_string(index) +
                                           " is out of range: dimension " + std::to_string(dimension) +
                                           " has " + std::to_string(shaped_->layout.count[dimension])};
    View narrowed = *this;
    narrowed.choices_[dimension] = {Kind::index, {nullptr, 0, 0, static_cast<uint64_t>(index), 1, 1}, {}};
    return narrowed;
  }
  [[nodiscard]] View operator[](const Picks& picks) const { return select(first_open(), picks); }
  // Narrows a dimension, counted from 0 over those of the region's layout.
  [[nodiscard]] View select(uint32_t dimension, const Picks& picks) const {
    if (dimension >= dimensions())
      throw Error{Status::kOutOfRange, "region '" + shaped_->name + "' has " + std::to_string(dimensions()) +
                                           " dimensions: there is no dimension " + std::to_string(dimension)};
    View narrowed = *this;
    if (picks.get() == nullptr) {
      narrowed.choices_[dimension] = {};
    } else {
      narrowed.choices_[dimension] = {Kind::picks, *picks.get(), picks.kept()};
      narrowed.check(dimension);
    }
    return narrowed;
  }

  // How many elements in each dimension that no index fixed; empty for a single element.
  [[nodiscard]] std::vector<uint64_t> shape() const {
    std::vector<uint64_t> shape;
    for (uint32_t i = 0; i < dimensions(); ++i)
      if (choices_[i].kind != Kind::index) shape.push_back(count(i));
    return shape;
  }
  [[nodiscard]] uint64_t blocks() const noexcept {
    uint64_t product = 1;
    for (uint32_t i = 0; i < dimensions(); ++i) product *= count(i);
    return product;
  }
  [[nodiscard]] const Layout& layout() const noexcept { return shaped_->layout; }
  [[nodiscard]] const std::string& name() const noexcept { return shaped_->name; }
  // All of the region's elements, for plans of one's own: plan.post({.from = view.picks(indices), ..}).
  [[nodiscard]] const BlockList& list() const noexcept { return shaped_->list; }
  // The elements as picks of list(); `indices` holds them where they are no range.
  [[nodiscard]] Picks picks(std::vector<uint32_t>& indices) const {
    if (const std::optional<Range> range = as_range()) return *range;
    std::array<towline_picks_t, TOWLINE_MAX_DIMENSIONS> chosen{};
    for (uint32_t i = 0; i < dimensions(); ++i) chosen[i] = choices_[i].picks;
    indices.resize(blocks());
    size_t needed = 0;
    detail::check(towline_block_list_select(list().native(), chosen.data(), sizeof(towline_picks_t),
                                            dimensions(), indices.data(), indices.size(), &needed));
    return indices;
  }

 private:
  friend class Region;
  friend class Peer;
  friend class Agent;
  friend class detail::KeptPlans;
  enum class Kind : uint8_t { everything, index, picks };
  struct Choice {
    Kind kind = Kind::everything;
    towline_picks_t picks{};  // all zero: everything
    std::shared_ptr<const void> kept{};
  };

  View(towline_block_list_t* list, std::string name, std::string owner, uint64_t key) {
    BlockList its_list{list};
    Layout layout{};
    layout.struct_size = sizeof(towline_layout_t);
    if (towline_block_list_layout(its_list.native(), &layout) != TOWLINE_OK) layout = {};
    shaped_ = std::make_shared<const detail::Shaped>(
        detail::Shaped{std::move(its_list), layout, std::move(name), std::move(owner), key});
  }
  [[nodiscard]] uint32_t dimensions() const noexcept { return shaped_->layout.dimensions; }
  [[nodiscard]] uint64_t count(uint32_t dimension) const noexcept {
    const Choice& choice = choices_[dimension];
    return choice.kind == Kind::everything ? shaped_->layout.count[dimension] : choice.picks.count;
  }
  [[nodiscard]] uint32_t first_open() const {
    uint32_t dimension = 0;
    while (dimension < dimensions() && choices_[dimension].kind != Kind::everything) ++dimension;
    if (dimension < dimensions()) return dimension;
    throw Error{Status::kOutOfRange, "region '" + shaped_->name + "' has " + std::to_string(dimensions()) +
                                         " dimensions, and all of them are narrowed already"};
  }
  // Ranges are checked here, indices where they are read.
  void check(uint32_t dimension) const {
    const towline_picks_t& picks = choices_[dimension].picks;
    if (picks.indices != nullptr || picks.count == 0) return;
    const uint64_t of = shaped_->layout.count[dimension];
    if (picks.start < of && (picks.step == 0 || (picks.count - 1) <= (of - 1 - picks.start) / picks.step))
      return;
    throw Error{Status::kOutOfRange, "region '" + shaped_->name + "': a range of " +
                                         std::to_string(picks.count) + " from " +
                                         std::to_string(picks.start) + " leaves dimension " +
                                         std::to_string(dimension) + ", which has " + std::to_string(of)};
  }
  // Indices, then at most one dimension that is a range, then whole dimensions.
  [[nodiscard]] std::optional<Range> as_range() const noexcept {
    uint64_t below = 1;
    for (uint32_t i = 0; i < dimensions(); ++i) below *= shaped_->layout.count[i];
    Range range{0, 1, below};
    bool fixed = true;
    for (uint32_t i = 0; i < dimensions(); ++i) {
      below /= shaped_->layout.count[i];
      const Choice& choice = choices_[i];
      if (!fixed) {
        if (choice.kind != Kind::everything) return std::nullopt;
        continue;
      }
      if (choice.kind != Kind::everything && choice.picks.indices != nullptr) return std::nullopt;
      range.count = count(i) * below;
      fixed = choice.kind == Kind::index;
      if (choice.kind == Kind::everything) continue;
      range.start += choice.picks.start * below;
      if (choice.picks.step == 1 || choice.picks.count == 1) continue;
      if (below != 1) return std::nullopt;
      range.step = choice.picks.step;
    }
    return range;
  }

  std::shared_ptr<const detail::Shaped> shaped_;
  std::array<Choice, TOWLINE_MAX_DIMENSIONS> choices_{};
};

namespace detail {

// The plans between the last pairs of regions, for copies by view.
class KeptPlans {
 public:
  explicit KeptPlans(SharedAgent agent) noexcept : agent_(std::move(agent)) {}

  // The plan from one view's region to the other's. Throws Error; kMismatch for views of other shapes.
  [[nodiscard]] PlanHandle plan(const View& from, const View& to) {
    if (from.blocks() != to.blocks() || from.shape() != to.shape())
      throw Error{Status::kMismatch, "copy: " + text(from) + " does not pair with " + text(to)};
    const std::lock_guard lock(mutex_);
    for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
      if (!same(*kept->from, *from.shaped_) || !same(*kept->to, *to.shaped_)) continue;
      std::rotate(kept_.begin(), kept, kept + 1);
      return kept_.front().plan;
    }
    auto options = defaults<towline_plan_options_t>();
    towline_plan_t* made = nullptr;
    check(towline_plan_create(agent_.get(), from.list().native(), to.list().native(), &options, &made));
    PlanHandle plan(made, towline_plan_release);
    make_room();
    kept_.insert(kept_.begin(), {from.shaped_, to.shaped_, plan});
    return plan;
  }

  // Posts, with indices in memory that this thread keeps.
  [[nodiscard]] static towline_post_options_t options(const View& from, const View& to, PostOptions options,
                                                      towline_group_t* group) {
    thread_local std::vector<uint32_t> from_indices;
    thread_local std::vector<uint32_t> to_indices;
    options.from = from.picks(from_indices);
    options.to = to.picks(to_indices);
    return native(options, group);
  }

 private:
  static constexpr size_t kMost = 64;  // idle ones; those in use are kept
  struct Kept {
    std::shared_ptr<const Shaped> from;
    std::shared_ptr<const Shaped> to;
    PlanHandle plan;
  };

  [[nodiscard]] static bool same(const Shaped& one, const Shaped& other) noexcept {
    return one.key == other.key && one.owner == other.owner;
  }
  [[nodiscard]] static std::string text(const View& view) {
    std::string shape;
    for (const uint64_t count : view.shape()) shape += (shape.empty() ? "" : " x ") + std::to_string(count);
    return "region '" + view.name() + "' narrowed to " + (shape.empty() ? "one element" : shape);
  }
  void make_room() {
    for (size_t i = kept_.size(); i-- > 0 && kept_.size() >= kMost;) {
      if (kept_[i].plan.use_count() == 1 && towline_plan_in_use(kept_[i].plan.get()) == 0)
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  const SharedAgent agent_;
  std::mutex mutex_;
  std::vector<Kept> kept_;  // the last used first
};

inline std::shared_ptr<KeptPlans> keep_plans(const SharedAgent& agent) {
  return std::make_shared<KeptPlans>(agent);
}

}  // namespace detail

inline View Region::view() const {
  if (view_ != nullptr) return *view_;
  towline_block_list_t* list = nullptr;
  detail::check(towline_region_list(handle_.get(), &list));
  return View{list, name_, {}, key()};
}
inline void Region::keep_view(std::string name) {
  name_ = std::move(name);
  view_ = std::make_shared<const View>(view());
}
template <class Index>
View Region::operator[](Index&& index) const {
  return view()[std::forward<Index>(index)];
}

inline View Peer::region(const std::string& name) const {
  const RegionInfo info = region_info(name);
  towline_block_list_t* list = nullptr;
  detail::check(towline_peer_region_list(handle_.get(), name.c_str(), &list));
  return View{list, name, std::string{incarnation()}, info.key};
}

inline Post Agent::copy(const View& from, const View& to, PostOptions options) const {
  const detail::PlanHandle plan = plans_->plan(from, to);
  const towline_post_options_t native = detail::KeptPlans::options(from, to, std::move(options), nullptr);
  return Plan{plan}.post_native(native);
}
inline Post Agent::copy(const View& from, const View& to) const { return copy(from, to, PostOptions{}); }

inline Status Group::copy(const View& from, const View& to, PostOptions options) const {
  const detail::PlanHandle plan = plans_->plan(from, to);
  const towline_post_options_t native =
      detail::KeptPlans::options(from, to, std::move(options), handle_.get());
  return detail::status(towline_plan_post(plan.get(), &native, nullptr));
}
inline Status Group::copy(const View& from, const View& to, Stream stream) const {
  return copy(from, to, PostOptions{.stream = stream});
}
inline Status Group::copy(const View& from, const View& to) const { return copy(from, to, PostOptions{}); }

}  // namespace v0
}  // namespace towline
