#include "memory_views.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <towline/gpu.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "agent_data.h"

namespace towline::nixl {

namespace {

constexpr const char* kCall = "prepMemView";
constexpr const char* kGpuBackend = "cuda";
constexpr size_t kPage = 4096;

// The GPU whose context is current on this thread, as for NIXL's own views; empty: none is, or there is no driver.
std::optional<uint64_t> current_gpu() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return std::nullopt;
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuCtxGetDevice"));
  int gpu = -1;
  const bool found = get != nullptr && get(&gpu) == 0 && gpu >= 0;
  (void)dlclose(driver);
  return found ? std::optional<uint64_t>(static_cast<uint64_t>(gpu)) : std::nullopt;
}

// Memory on the GPU that the view is for. `vram`: some of every GPU that this agent has registered memory of.
std::optional<nixlBasicDesc> choose_gpu(const std::vector<nixlBasicDesc>& vram) {
  if (vram.empty()) return std::nullopt;
  const std::optional<uint64_t> current = current_gpu();
  const auto found =
      std::ranges::find_if(vram, [&](const nixlBasicDesc& some) { return some.devId == current; });
  return found == vram.end() ? vram.front() : *found;
}

Rows rows_of(const std::vector<nixlBasicDesc>& descs) {
  return Rows::of(reinterpret_cast<const uint64_t*>(descs.data()), descs.size());
}

towline_blocks_t one_byte(nixl_mem_t type, const nixlBasicDesc& desc) noexcept {
  towline_blocks_t block = {};
  block.address = desc.addr;
  block.length = 1;
  block.device = type == DRAM_SEG ? 0 : desc.devId;
  block.kind = kind_of(type);
  return block;
}

size_t table_bytes_for(size_t entries) noexcept {
  return (sizeof(ViewTable) + entries * sizeof(ViewEntry) + kPage - 1) / kPage * kPage;
}

void* map_table(size_t bytes, size_t entries) {
  void* const table = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (table == MAP_FAILED)
    throw Error{Status::kOutOfMemory, fmt::format("mapping {} bytes: {}", bytes, std::strerror(errno))};
  *static_cast<ViewTable*>(table) = {kViewMagic, entries};
  return table;
}

nixl_status_t refuse(Status status, const std::string& agent) {
  const bool no_way = status == Status::kNoRoute || status == Status::kUnsupported;
  return fail(no_way ? NIXL_ERR_NOT_SUPPORTED : to_nixl(status),
              "{}: code on a GPU of this process has no address of this memory of agent '{}': {}", kCall,
              agent, towline_last_error());
}

}  // namespace

GpuView::GpuView(nixlAgentData& data, size_t entries)
    : data_(data),
      table_bytes_(table_bytes_for(entries)),
      table_(map_table(table_bytes_, entries)),
      on_gpu_(choose_gpu(data.memory.some_of_each_gpu())) {}

GpuView::~GpuView() {
  for (towline_transfer_t* transfer : transfers_) (void)towline_transfer_destroy(transfer, TOWLINE_FOREVER);
  table_region_.reset();
  (void)munmap(table_, table_bytes_);
}

nixl_status_t GpuView::make(nixlAgentData& data, nixl_mem_t type, const std::vector<Entry>& entries,
                            std::unique_ptr<GpuView>& view) {
  if (type != VRAM_SEG && type != DRAM_SEG)
    return fail(NIXL_ERR_NOT_SUPPORTED, "{}: code on a GPU reaches memory of GPUs and of hosts, not {}",
                kCall, nixlEnumStrings::memTypeStr(type));
  if (entries.empty()) return fail(NIXL_ERR_INVALID_PARAM, "{}: the list is empty", kCall);
  std::unique_ptr<GpuView> made(new GpuView(data, entries.size()));
  made->table_region_.emplace(
      data.agent->register_memory({made->table_, made->table_bytes_, Kind::kDram, 0}));
  nixl_status_t status = made->fill(type, entries);
  if (status == NIXL_SUCCESS) status = made->find_table();
  if (status == NIXL_SUCCESS) view = std::move(made);
  return status;
}

towline_blocks_t GpuView::table_byte() const noexcept {
  return one_byte(DRAM_SEG, {reinterpret_cast<uintptr_t>(table_), table_bytes_, 0});
}

// One transfer for each agent, of distinct places, since what a transfer writes must not overlap.
nixl_status_t GpuView::fill(nixl_mem_t type, const std::vector<Entry>& entries) {
  struct Places {
    std::vector<nixlBasicDesc> whole;
    std::map<uintptr_t, nixlBasicDesc> first;  // by address
    std::map<uintptr_t, uint64_t> found;
  };
  std::map<std::string, Places> agents;
  for (const Entry& entry : entries) {
    if (entry.agent == nixl_null_agent) continue;
    Places& places = agents[entry.agent];
    places.whole.push_back(entry.desc);
    places.first.try_emplace(entry.desc.addr, entry.desc);
  }
  for (auto& [agent, places] : agents) {
    ListHandle list;  // made for its checks
    std::shared_ptr<Remote> remote;
    nixl_status_t status = data_.make_list(agent, type, rows_of(places.whole), list, remote, kCall);
    if (status != NIXL_SUCCESS) return status;
    std::vector<nixlBasicDesc> far;
    for (const auto& [address, desc] : places.first) far.push_back({address, 1, desc.devId});
    const towline_blocks_t near = on_gpu_ ? one_byte(VRAM_SEG, *on_gpu_) : table_byte();
    Addresses addresses;
    status = reach(std::vector<towline_blocks_t>(far.size(), near), agent, type, far, addresses);
    if (status != NIXL_SUCCESS) return status;
    for (size_t i = 0; i < far.size(); ++i) places.found[far[i].addr] = addresses.far[i];
    if (!on_gpu_) handle_ = reinterpret_cast<nixlMemViewH>(addresses.near.front());
  }
  auto* to = reinterpret_cast<ViewEntry*>(static_cast<ViewTable*>(table_) + 1);
  for (const Entry& entry : entries)
    *to++ = entry.agent == nixl_null_agent
                ? ViewEntry{0, 0}
                : ViewEntry{agents[entry.agent].found[entry.desc.addr], entry.desc.len};
  return NIXL_SUCCESS;
}

nixl_status_t GpuView::find_table() {
  if (handle_ != nullptr) return NIXL_SUCCESS;
  if (!on_gpu_)
    return fail(NIXL_ERR_NOT_SUPPORTED,
                "{}: agent '{}' has registered no memory of a GPU, and the view has none", kCall, data_.name);
  const uintptr_t at = on_gpu_->addr;
  Addresses addresses;
  const nixl_status_t status = reach({table_byte(), one_byte(VRAM_SEG, *on_gpu_)}, data_.name, VRAM_SEG,
                                     {{at, 1, on_gpu_->devId}, {at + 1, 1, on_gpu_->devId}}, addresses);
  if (status == NIXL_SUCCESS) handle_ = reinterpret_cast<nixlMemViewH>(addresses.near.front());
  return status;
}

nixl_status_t GpuView::reach(const std::vector<towline_blocks_t>& near, const std::string& agent,
                             nixl_mem_t type, const std::vector<nixlBasicDesc>& far, Addresses& addresses) {
  towline_block_list_t* made = nullptr;
  const auto ours = static_cast<Status>(towline_block_list_create(
      data_.agent->native(), nullptr, near.data(), sizeof(towline_blocks_t), near.size(), &made));
  if (ours != Status::kOk) return refuse(ours, data_.name);
  const ListHandle local(made);
  ListHandle remote;
  std::shared_ptr<Remote> of;
  const nixl_status_t listed = data_.make_list(agent, type, rows_of(far), remote, of, kCall);
  if (listed != NIXL_SUCCESS) return listed;
  auto options = towline::detail::defaults<towline_transfer_options_t>();
  options.timeout_ns = data_.timeout_ns;
  options.backend = kGpuBackend;
  towline_transfer_t* transfer = nullptr;
  const auto status = static_cast<Status>(
      towline_transfer_create(data_.agent->native(), local.get(), remote.get(), &options, &transfer));
  if (is_error(status)) {
    if (status == Status::kStale && of != nullptr && of->leaves())
      return fail(NIXL_ERR_REMOTE_DISCONNECT, "{}: agent '{}' has left", kCall, agent);
    return refuse(status, agent);
  }
  transfers_.push_back(transfer);
  addresses = {std::vector<uint64_t>(far.size()), std::vector<uint64_t>(far.size())};
  return wait_for_view(transfer, agent, addresses);
}

nixl_status_t GpuView::wait_for_view(towline_transfer_t* transfer, const std::string& agent,
                                     Addresses& addresses) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::nanoseconds{data_.timeout_ns};
  auto pause = std::chrono::microseconds{20};
  for (;;) {
    const auto status = static_cast<Status>(
        towline_transfer_view(transfer, addresses.near.data(), addresses.far.data(), addresses.far.size()));
    if (status == Status::kOk) return NIXL_SUCCESS;
    if (status != Status::kAgain) return refuse(status, agent);
    if (Clock::now() >= until)
      return fail(NIXL_ERR_BACKEND, "{}: agent '{}' was not connected within {} ms", kCall, agent,
                  data_.timeout_ns / 1'000'000);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds{1000});
  }
}

}  // namespace towline::nixl
