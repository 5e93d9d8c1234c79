#ifdef TOWLINE_HAVE_IBVERBS

#include "fabric/verbs/device.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <tuple>

#include "base/error.h"
#include "base/os/dynamic_library.h"

namespace towline::fabric {
namespace {

uint64_t lane_bits_per_s(uint8_t speed) noexcept {
  switch (speed) {
    case 1:
      return 2'500'000'000;
    case 2:
      return 5'000'000'000;
    case 4:
    case 8:
      return 10'000'000'000;
    case 16:
      return 14'062'500'000;
    case 32:
      return 25'781'250'000;
    case 64:
      return 53'125'000'000;
    case 128:
      return 106'250'000'000;
    default:
      return 0;
  }
}

uint32_t lanes(uint8_t width) noexcept {
  switch (width) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 0;
  }
}

const char* state_text(ibv_port_state state) noexcept {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initialising (no subnet manager?)";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    default:
      return "unusable";
  }
}

std::string memlock_text() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return fmt::format("{} bytes", limit.rlim_cur);
}

ibv_device* find_device(ibv_device** list, const std::string& wanted, std::string& names) {
  for (; *list != nullptr; ++list) {
    if (wanted == (*list)->name) return *list;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", (*list)->name);
  }
  return nullptr;
}

}  // namespace

VerbsDevice::VerbsDevice(const VerbsLibrary& library, const VerbsOptions& options)
    : library_(library), options_(options), name_(fmt::format("{}/{}", options.device, options.port)) {
  int count = 0;
  ibv_device** list = library_.get_device_list(&count);
  if (list == nullptr && errno == ENOSYS)
    fail(
        Status::kNotFound,
        "verbs: there is no device {}; the kernel has no RDMA devices, or its module ib_uverbs is not loaded",
        options.device);
  if (list == nullptr) fail_errno(errno, "verbs: the RDMA devices of this host can't be listed");
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> held{list, library_.free_device_list};
  std::string names;
  ibv_device* device = find_device(list, options.device, names);
  if (device == nullptr)
    fail(Status::kNotFound, "verbs: there is no device {}; {}", options.device,
         names.empty() ? std::string{"this host has none"} : "there are: " + names);
  const std::string node = device->dev_name;
  const std::string path = device->ibdev_path;
  errno = 0;
  context_ = {library_.open_device(device), {library_.close_device}};
  const int error = errno;
  if (context_ == nullptr)
    fail_errno(error == 0 ? EIO : error,
               "verbs: {} can't be opened (may this process read and write /dev/infiniband/{}?)",
               options.device, node);
  if (const int failed = library_.query_device(context_.get(), &limits_); failed != 0)
    fail_errno(failed, "verbs: {}: ibv_query_device", options.device);
  if (options.port == 0 || options.port > limits_.phys_port_cnt)
    fail(Status::kNotFound, "verbs: {} has no port {}, only {}", options.device, options.port,
         limits_.phys_port_cnt);
  port_ = query_port();
  if (!port_.active)
    fail(Status::kUnreachable, "verbs: port {} of {} is {}", options.port, options.device, port_.state);
  gid_ = query_gid();
  domain_ = {library_.alloc_pd(context_.get()), {library_.dealloc_pd}};
  if (domain_ == nullptr) fail_errno(errno, "verbs: {}: ibv_alloc_pd", options.device);
  std::ifstream{path + "/device/numa_node"} >> numa_node_;
}

VerbsPort VerbsDevice::query_port() const {
  ibv_port_attr attributes{};
  const int error = library_.query_port(context_.get(), options_.port,
                                        reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
  if (error != 0) fail_errno(error, "verbs: {}: ibv_query_port", name_);
  VerbsPort port;
  port.active = attributes.state == IBV_PORT_ACTIVE;
  port.state = state_text(attributes.state);
  port.roce = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.lid = attributes.lid;
  port.mtu = attributes.active_mtu;
  port.max_message_bytes = attributes.max_msg_sz;
  port.bandwidth_bytes_per_s = lane_bits_per_s(attributes.active_speed) * lanes(attributes.active_width) / 8;
  if (!port.roce) port.pkey_index = choose_partition(attributes.pkey_tbl_len);
  return port;
}

// A partition that the port is a full member of, if there is one: limited members reach full ones only. Of several the
// default one, else that of the lowest number: the order of the table is each port's own, and both ends have to choose the
// same. Without any, the first entry.
uint16_t VerbsDevice::choose_partition(uint16_t entries) const noexcept {
  constexpr uint16_t kFullMember = 0x8000;
  constexpr uint16_t kDefault = 0x7fff;
  const auto order = [](uint16_t key) {
    const auto number = static_cast<uint16_t>(key & ~kFullMember);
    return std::tuple((key & kFullMember) == 0, number != kDefault, number);
  };
  uint16_t best = 0;
  uint16_t chosen = 0;
  for (uint16_t index = 0; index < entries; ++index) {
    __be16 entry = 0;
    if (library_.query_pkey(context_.get(), options_.port, index, &entry) != 0) continue;
    const uint16_t key = ntohs(entry);
    if ((key & ~kFullMember) == 0 || (best != 0 && order(best) <= order(key))) continue;  // 0: not in use
    best = key;
    chosen = index;
  }
  return chosen;
}

GidChoice VerbsDevice::query_gid() const {
  ibv_port_attr attributes{};
  const int error = library_.query_port(context_.get(), options_.port,
                                        reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
  if (error != 0) fail_errno(error, "verbs: {}: ibv_query_port", name_);
  std::vector<Gid> table;
  constexpr int kMostGids = 256;  // that a connection can name
  for (int index = 0; index < std::min(attributes.gid_tbl_len, kMostGids); ++index) {
    ibv_gid_entry entry{};
    if (library_.query_gid_ex(context_.get(), options_.port, static_cast<uint32_t>(index), &entry, 0,
                              sizeof entry) != 0)
      continue;  // an entry that is not in use
    Gid gid;
    gid.index = static_cast<uint32_t>(index);
    gid.type = static_cast<GidType>(std::min<uint32_t>(entry.gid_type, 2));
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
    char interface[IF_NAMESIZE] = "";
    if (entry.ndev_ifindex != 0 && if_indextoname(entry.ndev_ifindex, interface) != nullptr)
      gid.interface = interface;
    table.push_back(std::move(gid));
  }
  auto choice = choose_gid(table, port_.roce, options_.gid_index);
  if (!choice && options_.gid_index >= 0)
    fail(Status::kNotFound, "verbs: {} has no GID of index {}", name_, options_.gid_index);
  if (!choice)
    fail(Status::kUnreachable, "verbs: {} has no address: its network interface has none, or is down", name_);
  return *choice;
}

bool VerbsDevice::refresh() noexcept {
  try {
    port_ = query_port();
    if (!port_.active) return false;
    gid_ = query_gid();
    return true;
  } catch (const std::exception&) {  // the port's fault, or no memory: it is asked again
    return false;
  }
}

// ---- memory

ibv_mr* VerbsDevice::register_host_memory(const MemoryToRegister& memory, unsigned access) const noexcept {
  if ((access & IBV_ACCESS_OPTIONAL_RANGE) != 0 && library_.reg_mr_iova2 != nullptr)
    return library_.reg_mr_iova2(domain_.get(), memory.address, memory.bytes,
                                 reinterpret_cast<uint64_t>(memory.address), access);
  return library_.reg_mr(domain_.get(), memory.address, memory.bytes,
                         static_cast<int>(access & ~unsigned{IBV_ACCESS_OPTIONAL_RANGE}));
}

Registration VerbsDevice::register_memory(const MemoryToRegister& memory, bool relaxed) const {
  unsigned access = IBV_ACCESS_LOCAL_WRITE;
  if (memory.remote_read) access |= IBV_ACCESS_REMOTE_READ;
  if (memory.remote_write) access |= IBV_ACCESS_REMOTE_WRITE;
  // Devices that do not know it ignore it.
  if (relaxed) access |= IBV_ACCESS_RELAXED_ORDERING;
  ibv_mr* region = nullptr;
  errno = 0;
  if (memory.dmabuf_fd >= 0) {
    if (library_.reg_dmabuf_mr == nullptr)
      fail(Status::kUnsupported, "verbs: {}: this libibverbs registers no dma-buf (it needs rdma-core 34)",
           name_);
    region = library_.reg_dmabuf_mr(domain_.get(), memory.dmabuf_offset, memory.bytes,
                                    reinterpret_cast<uint64_t>(memory.address), memory.dmabuf_fd,
                                    static_cast<int>(access));
  } else {
    region = register_host_memory(memory, access);
    // Memory that is mapped to be read only can still be sent.
    if (region == nullptr && errno == EFAULT && !memory.remote_write)
      region = register_host_memory(memory, access & ~unsigned{IBV_ACCESS_LOCAL_WRITE});
  }
  if (region == nullptr) fail_registration(memory, errno);
  Registration registration;
  registration.local_key = region->lkey | (memory.dmabuf_fd >= 0 ? kDeviceMemoryKey : 0);
  registration.remote_key = region->rkey;
  registration.base = reinterpret_cast<uint64_t>(memory.address);
  registration.handle = reinterpret_cast<uint64_t>(region);
  return registration;
}

void VerbsDevice::fail_registration(const MemoryToRegister& memory, int error) const {
  const std::string what = fmt::format("verbs: {}: {} bytes at {} can't be registered", name_, memory.bytes,
                                       static_cast<const void*>(memory.address));
  if (memory.dmabuf_fd >= 0 && (error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == ENOSYS))
    fail(Status::kUnsupported, "{}: the device takes no dma-buf: {}", what, errno_text(error));
  if (error == ENOMEM)
    fail(Status::kOutOfMemory,
         "{}: {}. Registered memory is locked; this process may lock {} (ulimit -l; LimitMEMLOCK= of a "
         "service)",
         what, errno_text(error), memlock_text());
  fail_errno(error == 0 ? EIO : error, "{}", what);
}

void VerbsDevice::deregister_memory(const Registration& registration) const noexcept {
  if (registration.handle != 0) (void)library_.dereg_mr(reinterpret_cast<ibv_mr*>(registration.handle));
}

// ---- the library

namespace {

VerbsLibrary load() {
  DynamicLibrary file;
  try {
    file = DynamicLibrary{"libibverbs.so.1"};
  } catch (const core::Error& error) {
    fail(Status::kUnsupported, "libibverbs is not installed: {}", error.message());
  }
  file.keep_loaded();
  VerbsLibrary table;
  const auto find = [&](auto& slot, const char* name) {
    slot = file.symbol<std::remove_reference_t<decltype(slot)>>(name);
  };
  find(table.get_device_list, "ibv_get_device_list");
  find(table.free_device_list, "ibv_free_device_list");
  find(table.open_device, "ibv_open_device");
  find(table.close_device, "ibv_close_device");
  find(table.query_device, "ibv_query_device");
  find(table.query_port, "ibv_query_port");
  find(table.query_gid_ex, "_ibv_query_gid_ex");
  find(table.query_pkey, "ibv_query_pkey");
  find(table.alloc_pd, "ibv_alloc_pd");
  find(table.dealloc_pd, "ibv_dealloc_pd");
  find(table.reg_mr, "ibv_reg_mr");
  find(table.dereg_mr, "ibv_dereg_mr");
  find(table.create_comp_channel, "ibv_create_comp_channel");
  find(table.destroy_comp_channel, "ibv_destroy_comp_channel");
  find(table.create_cq, "ibv_create_cq");
  find(table.destroy_cq, "ibv_destroy_cq");
  find(table.get_cq_event, "ibv_get_cq_event");
  find(table.ack_cq_events, "ibv_ack_cq_events");
  find(table.create_srq, "ibv_create_srq");
  find(table.destroy_srq, "ibv_destroy_srq");
  find(table.create_qp, "ibv_create_qp");
  find(table.modify_qp, "ibv_modify_qp");
  find(table.destroy_qp, "ibv_destroy_qp");
  find(table.get_async_event, "ibv_get_async_event");
  find(table.ack_async_event, "ibv_ack_async_event");
  table.reg_mr_iova2 = file.find_symbol<decltype(table.reg_mr_iova2)>("ibv_reg_mr_iova2");
  table.reg_dmabuf_mr = file.find_symbol<decltype(table.reg_dmabuf_mr)>("ibv_reg_dmabuf_mr");
  return table;
}

}  // namespace

const VerbsLibrary& VerbsLibrary::get() {
  static const VerbsLibrary library = load();
  return library;
}

}  // namespace towline::fabric

#endif
