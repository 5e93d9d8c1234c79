// A model of libibverbs for tests: devices, ports, queue pairs and their errors in this process, as the library and
// the InfiniBand specification document them. One thread. It is stricter than devices are: a queue that is
// overrun, an event that is not acknowledged, an object that is destroyed while it is in use are failures.
#pragma once

#include <arpa/inet.h>
#include <linux/mempolicy.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabric/verbs/library.h"

namespace towline::fabric::testing {

struct FakeGid {
  uint8_t type = IBV_GID_TYPE_ROCE_V2;
  uint8_t bytes[16] = {};
};

struct FakeDevice;

struct FakeCompletionQueue : ibv_cq {
  std::deque<ibv_wc> entries;
  int capacity = 0;
  bool wants_event = false;
};

struct FakeShared : ibv_srq {
  std::deque<std::pair<uint64_t, ibv_sge>> receives;
  uint32_t capacity = 0;
};

struct FakeRequest {
  ibv_send_wr request{};
  ibv_sge piece{};
  std::vector<uint8_t> inlined;
  bool signalled = false;
};

struct FakePair : ibv_qp {
  FakeDevice* device = nullptr;
  std::deque<FakeRequest> sends;  // not carried out
  uint32_t slots_used = 0;        // of the send queue, until a later completion is polled
  uint32_t max_send_wr = 0;
  uint32_t max_inline = 0;
  ibv_qp_attr attributes{};
  uint16_t pkey_index = 0;
  std::map<uint64_t, uint32_t> slots_until;  // which completion frees how many, by its order
  uint32_t unsignalled = 0;
};

struct FakeDevice : ibv_device {
  ibv_context context{};
  ibv_device_attr limits{};
  ibv_port_state state = IBV_PORT_ACTIVE;
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  ibv_mtu mtu = IBV_MTU_4096;
  std::vector<FakeGid> gids;
  std::vector<uint16_t> pkeys = {0xffff};
  int open_error = 0;
  bool takes_dmabuf = true;
  bool flushes_late =
      false;  // a receive that a queue pair had taken: when the event of its last one is fetched
  std::map<uint32_t, std::unique_ptr<FakePair>> pairs;
  std::map<uint32_t, std::pair<std::unique_ptr<ibv_mr>, int>> regions;  // by key: with the rights
  uint64_t locked_bytes = 0;
  uint64_t lock_limit = UINT64_MAX;
  std::deque<ibv_async_event> events;
  uint32_t unacknowledged = 0;
  int dmabuf_fd = -1;  // of the last one
  uint64_t dmabuf_offset = 0;
  unsigned last_access = 0;
  bool pins =
      false;  // whole shared mappings that are registered: it moves their pages, wherever they are mapped
  std::map<uint32_t, uint8_t*> pinned;  // by key
  std::vector<int> policies;  // of registered memory: by which the kernel chooses NUMA nodes for its pages
};

class FakeVerbs {
 public:
  FakeVerbs() { current() = this; }
  FakeVerbs(const FakeVerbs&) = delete;
  FakeVerbs& operator=(const FakeVerbs&) = delete;
  ~FakeVerbs() { current() = nullptr; }

  FakeDevice& add_device(const std::string& name) {
    devices.push_back(std::make_unique<FakeDevice>());
    FakeDevice& device = *devices.back();
    std::strncpy(device.name, name.c_str(), sizeof device.name - 1);
    std::strncpy(device.dev_name, "uverbs0", sizeof device.dev_name - 1);
    device.limits.phys_port_cnt = 1;
    device.limits.max_qp = 64;
    device.limits.max_qp_wr = 256;
    device.limits.max_cqe = 4096;
    device.limits.max_srq_wr = 512;
    device.limits.max_qp_rd_atom = 4;
    FakeGid gid;
    gid.bytes[10] = gid.bytes[11] = 0xff;
    gid.bytes[12] = 10;
    gid.bytes[15] = static_cast<uint8_t>(devices.size());
    device.gids = {gid};
    return device;
  }

  // ---- what happens to devices

  static void set_port(FakeDevice& device, bool active) {
    device.state = active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    ibv_async_event event{};
    event.event_type = active ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
    event.element.port_num = 1;
    tell(device, event);
  }
  static void tell(FakeDevice& device, const ibv_async_event& event) {
    device.events.push_back(event);
    eventfd_write(device.context.async_fd, 1);
  }
  static void tell_of_pair(FakePair& pair, ibv_event_type type) {
    ibv_async_event event{};
    event.event_type = type;
    event.element.qp = &pair;
    tell(*pair.device, event);
  }
  void break_pair(FakePair& pair, ibv_event_type type) {
    to_error(pair);
    tell_of_pair(pair, type);
  }

  // Carries out at most so many requests, in turn.
  void run(uint32_t most = UINT32_MAX) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (const auto& device : devices) {
        for (const auto& [number, pair] : device->pairs) {
          if (most == 0 || pair->sends.empty() || pair->state != IBV_QPS_RTS) continue;
          if (!carry_out(*pair)) continue;
          moved = true;
          --most;
        }
      }
    }
  }

  std::vector<std::unique_ptr<FakeDevice>> devices;
  int list_error = 0;  // of get_device_list
  bool run_when_polled = true;
  uint64_t completions = 0;
  uint64_t requests = 0;
  uint64_t inlined = 0;
  std::vector<std::string> faults;  // what no caller may do

  static const VerbsLibrary& library() {
    static const VerbsLibrary table = make_table();
    return table;
  }

 private:
  static FakeVerbs*& current() {
    static FakeVerbs* world = nullptr;
    return world;
  }
  static FakeDevice& device_of(const ibv_context* context) {
    return *static_cast<FakeDevice*>(context->device);
  }
  void fault(const std::string& what) { faults.push_back(what); }

  void complete(FakePair& pair, ibv_cq* into, const ibv_wc& entry) {
    auto& queue = *static_cast<FakeCompletionQueue*>(into);
    queue.entries.push_back(entry);
    queue.entries.back().qp_num = pair.qp_num;
    if (static_cast<int>(queue.entries.size()) > queue.capacity) fault("a completion queue was overrun");
    if (queue.wants_event && queue.channel != nullptr) {
      queue.wants_event = false;
      eventfd_write(queue.channel->fd, 1);
    }
  }

  void complete_send(FakePair& pair, const FakeRequest& request, ibv_wc_status status) {
    ++pair.unsignalled;
    if (!request.signalled && status == IBV_WC_SUCCESS) return;
    ibv_wc entry{};
    entry.wr_id = request.request.wr_id;
    entry.status = status;
    entry.byte_len = request.piece.length;
    entry.src_qp = pair.unsignalled;  // how many slots its polling frees
    pair.unsignalled = 0;
    complete(pair, pair.send_cq, entry);
  }

  void to_error(FakePair& pair) {
    if (pair.state == IBV_QPS_ERR) return;
    pair.state = IBV_QPS_ERR;
    flush(pair);
    if (pair.srq != nullptr) tell_of_pair(pair, IBV_EVENT_QP_LAST_WQE_REACHED);
  }
  void flush(FakePair& pair) {
    while (!pair.sends.empty()) {
      const FakeRequest request = std::move(pair.sends.front());
      pair.sends.pop_front();
      complete_send(pair, request, IBV_WC_WR_FLUSH_ERR);
    }
  }

  void flush_receive(FakePair& pair) {
    auto& shared = *static_cast<FakeShared*>(pair.srq);
    if (shared.receives.empty()) return;
    ibv_wc entry{};
    entry.wr_id = shared.receives.front().first;
    entry.status = IBV_WC_WR_FLUSH_ERR;
    shared.receives.pop_front();
    complete(pair, pair.recv_cq, entry);
  }

  FakePair* find_other(const FakePair& pair) {
    for (const auto& device : devices) {
      const auto found = device->pairs.find(pair.attributes.dest_qp_num);
      if (found == device->pairs.end() || device->state != IBV_PORT_ACTIVE) continue;
      FakePair& other = *found->second;
      const uint8_t* dgid = pair.attributes.ah_attr.grh.dgid.raw;
      const auto is_there = [&](const FakeGid& gid) { return std::memcmp(gid.bytes, dgid, 16) == 0; };
      const bool addressed = pair.attributes.ah_attr.is_global == 0 ||
                             std::any_of(device->gids.begin(), device->gids.end(), is_there);
      const bool listens = other.state == IBV_QPS_RTR || other.state == IBV_QPS_RTS;
      if (addressed && listens && other.attributes.dest_qp_num == pair.qp_num &&
          other.attributes.rq_psn == pair.attributes.sq_psn)
        return &other;
    }
    return nullptr;
  }

  static uint8_t* reach(FakeDevice& device, uint32_t key, uint64_t address, uint32_t length, int rights) {
    const auto found = device.regions.find(key);
    if (found == device.regions.end()) return nullptr;
    const ibv_mr& region = *found->second.first;
    const auto start = reinterpret_cast<uint64_t>(region.addr);
    const bool inside =
        address >= start && address - start <= region.length && length <= region.length - (address - start);
    if (!inside || (found->second.second & rights) != rights) return nullptr;
    const auto pinned = device.pinned.find(key);
    return pinned != device.pinned.end() ? pinned->second + (address - start)
                                         : reinterpret_cast<uint8_t*>(address);
  }

  // False: it has to wait, for a receive.
  bool carry_out(FakePair& pair) {
    const FakeRequest request = pair.sends.front();
    const ibv_send_wr& wr = request.request;
    const uint32_t length = wr.num_sge == 0 ? 0 : request.piece.length;
    const auto fail = [&](ibv_wc_status status) {
      pair.sends.pop_front();
      complete_send(pair, request, status);
      to_error(pair);
      return true;
    };
    FakePair* other = pair.device->state == IBV_PORT_ACTIVE ? find_other(pair) : nullptr;
    if (other == nullptr) return fail(IBV_WC_RETRY_EXC_ERR);
    uint8_t* local = nullptr;
    if (length != 0) {
      local = !request.inlined.empty() ? const_cast<uint8_t*>(request.inlined.data())
                                       : reach(*pair.device, request.piece.lkey, request.piece.addr, length,
                                               wr.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0);
      if (local == nullptr) return fail(IBV_WC_LOC_PROT_ERR);
    }
    const bool sends = wr.opcode == IBV_WR_SEND;
    const bool receives = sends || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    auto& shared = *static_cast<FakeShared*>(other->srq);
    if (receives && shared.receives.empty()) return false;
    if (!sends && length != 0) {
      uint8_t* there =
          reach(*other->device, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, length,
                wr.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
      if (there == nullptr) {
        break_pair(*other, IBV_EVENT_QP_ACCESS_ERR);
        return fail(IBV_WC_REM_ACCESS_ERR);
      }
      if (wr.opcode == IBV_WR_RDMA_READ)
        std::memcpy(local, there, length);
      else
        std::memcpy(there, local, length);
    }
    if (receives) {
      const auto [id, piece] = shared.receives.front();
      if (sends && length > piece.length) return fail(IBV_WC_REM_INV_REQ_ERR);
      shared.receives.pop_front();
      if (sends && length != 0) std::memcpy(reinterpret_cast<void*>(piece.addr), local, length);
      ibv_wc entry{};
      entry.wr_id = id;
      entry.byte_len = length;
      entry.opcode = sends ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
      entry.wc_flags = sends ? 0u : unsigned{IBV_WC_WITH_IMM};
      entry.imm_data = wr.imm_data;
      complete(*other, other->recv_cq, entry);
    }
    pair.sends.pop_front();
    complete_send(pair, request, IBV_WC_SUCCESS);
    return true;
  }

  // ---- the data path's tables

  static int post_send(ibv_qp* handle, ibv_send_wr* wr, ibv_send_wr** bad) {
    auto& pair = *static_cast<FakePair*>(handle);
    FakeVerbs& world = *current();
    for (; wr != nullptr; wr = wr->next) {
      *bad = wr;
      if (pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR) return EINVAL;
      if (pair.slots_used >= pair.max_send_wr) {
        world.fault("a send queue was overrun");
        return ENOMEM;
      }
      FakeRequest request;
      request.request = *wr;
      request.signalled = (wr->send_flags & IBV_SEND_SIGNALED) != 0;
      if (wr->num_sge != 0) request.piece = *wr->sg_list;
      if ((wr->send_flags & IBV_SEND_INLINE) != 0) {
        if (request.piece.length > pair.max_inline) return EINVAL;
        const auto* from = reinterpret_cast<const uint8_t*>(request.piece.addr);
        request.inlined.assign(from, from + request.piece.length);
        ++world.inlined;
      }
      ++pair.slots_used;
      ++world.requests;
      pair.sends.push_back(std::move(request));
    }
    if (pair.state == IBV_QPS_ERR) world.flush(pair);
    return 0;
  }
  static int post_srq_recv(ibv_srq* handle, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    auto& shared = *static_cast<FakeShared*>(handle);
    for (; wr != nullptr; wr = wr->next) {
      *bad = wr;
      if (shared.receives.size() >= shared.capacity) {
        current()->fault("a shared receive queue was overrun");
        return ENOMEM;
      }
      try {
        shared.receives.emplace_back(wr->wr_id, *wr->sg_list);
      } catch (const std::bad_alloc&) {
        return ENOMEM;
      }
    }
    return 0;
  }
  static int poll_cq(ibv_cq* handle, int count, ibv_wc* out) {
    auto& queue = *static_cast<FakeCompletionQueue*>(handle);
    FakeVerbs& world = *current();
    if (world.run_when_polled) world.run();
    int given = 0;
    for (; given < count && !queue.entries.empty(); ++given) {
      out[given] = queue.entries.front();
      queue.entries.pop_front();
      ++world.completions;
      auto& device = device_of(handle->context);
      const auto pair = device.pairs.find(out[given].qp_num);
      if (pair != device.pairs.end() && out[given].src_qp <= pair->second->slots_used)
        pair->second->slots_used -= out[given].src_qp;
      out[given].src_qp = 0;
    }
    return given;
  }
  static int req_notify_cq(ibv_cq* handle, int) {
    static_cast<FakeCompletionQueue*>(handle)->wants_event = true;
    return 0;
  }

  // ---- the library's functions

  static ibv_device** get_device_list(int* count) {
    FakeVerbs& world = *current();
    if (world.list_error != 0) {
      errno = world.list_error;
      return nullptr;
    }
    auto** list = new ibv_device*[world.devices.size() + 1];
    for (std::size_t i = 0; i < world.devices.size(); ++i) list[i] = world.devices[i].get();
    list[world.devices.size()] = nullptr;
    *count = static_cast<int>(world.devices.size());
    return list;
  }
  static ibv_context* open_device(ibv_device* handle) {
    auto& device = *static_cast<FakeDevice*>(handle);
    if (device.open_error != 0) {
      errno = device.open_error;
      return nullptr;
    }
    device.context.device = &device;
    device.context.async_fd = eventfd(0, EFD_CLOEXEC);
    device.context.ops.post_send = post_send;
    device.context.ops.post_srq_recv = post_srq_recv;
    device.context.ops.poll_cq = poll_cq;
    device.context.ops.req_notify_cq = req_notify_cq;
    return &device.context;
  }
  static int close_device(ibv_context* context) {
    FakeDevice& device = device_of(context);
    if (!device.pairs.empty() || !device.regions.empty()) current()->fault("a device in use was closed");
    return close(context->async_fd);
  }
  static int query_port(ibv_context* context, uint8_t, _compat_ibv_port_attr* out) {
    const FakeDevice& device = device_of(context);
    auto& attributes = *reinterpret_cast<ibv_port_attr*>(out);
    attributes.state = device.state;
    attributes.active_mtu = attributes.max_mtu = device.mtu;
    attributes.gid_tbl_len = static_cast<int>(device.gids.size());
    attributes.pkey_tbl_len = static_cast<uint16_t>(device.pkeys.size());
    attributes.link_layer = device.link_layer;
    attributes.max_msg_sz = 1u << 30;
    attributes.active_speed = 64;
    attributes.active_width = 2;
    return 0;
  }
  static int query_gid_ex(ibv_context* context, uint32_t, uint32_t index, ibv_gid_entry* entry, uint32_t,
                          size_t) {
    const FakeDevice& device = device_of(context);
    if (index >= device.gids.size()) return ENODATA;
    std::memcpy(entry->gid.raw, device.gids[index].bytes, 16);
    entry->gid_type = device.gids[index].type;
    entry->gid_index = index;
    return 0;
  }
  // The mapping's own, else the calling thread's.
  static int policy_of(const void* address) noexcept {
    int mode = MPOL_DEFAULT;
    if (syscall(SYS_get_mempolicy, &mode, nullptr, 0UL, address, MPOL_F_ADDR) == 0 && mode != MPOL_DEFAULT)
      return mode;
    return syscall(SYS_get_mempolicy, &mode, nullptr, 0UL, nullptr, 0UL) == 0 ? mode : -1;
  }
  // As a C library: without memory it says so.
  static ibv_mr* add_region(ibv_pd* domain, void* address, size_t length, int access) noexcept try {
    FakeDevice& device = device_of(domain->context);
    if (device.locked_bytes + length > device.lock_limit) {
      errno = ENOMEM;
      return nullptr;
    }
    static uint32_t keys = 100;
    auto region = std::make_unique<ibv_mr>();
    region->context = domain->context;
    region->pd = domain;
    region->addr = address;
    region->length = length;
    region->lkey = region->rkey = ++keys;
    device.last_access = static_cast<unsigned>(access);
    device.policies.push_back(policy_of(address));
    ibv_mr* const made = region.get();
    // A size of 0 maps the pages of a shared mapping a second time.
    if (void* const pages = device.pins ? mremap(address, 0, length, MREMAP_MAYMOVE) : MAP_FAILED;
        pages != MAP_FAILED)
      device.pinned[made->lkey] = static_cast<uint8_t*>(pages);
    device.regions[made->lkey] = {std::move(region), access};
    device.locked_bytes += length;
    return made;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
  static int dereg_mr(ibv_mr* region) {
    FakeDevice& device = device_of(region->context);
    device.locked_bytes -= region->length;
    if (const auto pinned = device.pinned.find(region->lkey); pinned != device.pinned.end()) {
      munmap(pinned->second, region->length);
      device.pinned.erase(pinned);
    }
    device.regions.erase(region->lkey);
    return 0;
  }
  static ibv_qp* create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
    FakeDevice& device = device_of(domain->context);
    if (static_cast<int>(device.pairs.size()) >= device.limits.max_qp) {
      errno = ENOMEM;
      return nullptr;
    }
    static uint32_t numbers = 16;
    auto made = std::make_unique<FakePair>();
    made->context = domain->context;
    made->device = &device;
    made->qp_num = ++numbers;
    made->send_cq = attributes->send_cq;
    made->recv_cq = attributes->recv_cq;
    made->srq = attributes->srq;
    made->state = IBV_QPS_RESET;
    made->max_send_wr = attributes->cap.max_send_wr;
    made->max_inline = attributes->cap.max_inline_data = std::min(attributes->cap.max_inline_data, 64u);
    FakePair* const pair = made.get();
    device.pairs[pair->qp_num] = std::move(made);
    return pair;
  }
  // The masks that the specification requires for each step.
  static int modify_qp(ibv_qp* handle, ibv_qp_attr* attributes, int mask) {
    auto& pair = *static_cast<FakePair*>(handle);
    constexpr int kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    constexpr int kReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    constexpr int kSend = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    const ibv_qp_state to = attributes->qp_state;
    if (to == IBV_QPS_ERR) {
      current()->to_error(pair);
      return 0;
    }
    const bool right = (to == IBV_QPS_INIT && pair.state == IBV_QPS_RESET && mask == kInit) ||
                       (to == IBV_QPS_RTR && pair.state == IBV_QPS_INIT && mask == kReceive) ||
                       (to == IBV_QPS_RTS && pair.state == IBV_QPS_RTR && mask == kSend);
    if (!right) return EINVAL;
    if (to == IBV_QPS_INIT) pair.pkey_index = attributes->pkey_index;
    if (to == IBV_QPS_RTR) pair.attributes = *attributes;
    if (to == IBV_QPS_RTS) pair.attributes.sq_psn = attributes->sq_psn;
    pair.state = to;
    return 0;
  }
  static int destroy_qp(ibv_qp* handle) {
    auto& pair = *static_cast<FakePair*>(handle);
    FakeDevice& device = *pair.device;
    if (device.unacknowledged != 0)
      current()->fault("a queue pair was destroyed before its events were acknowledged");
    std::erase_if(device.events, [&](const ibv_async_event& event) { return event.element.qp == handle; });
    for (ibv_cq* queue : {pair.send_cq, pair.recv_cq})
      std::erase_if(static_cast<FakeCompletionQueue*>(queue)->entries,
                    [&](const ibv_wc& entry) { return entry.qp_num == pair.qp_num; });
    device.pairs.erase(pair.qp_num);
    return 0;
  }

  static VerbsLibrary make_table() {
    VerbsLibrary table;
    table.get_device_list = get_device_list;
    table.free_device_list = [](ibv_device** list) { delete[] list; };
    table.open_device = open_device;
    table.close_device = close_device;
    table.query_device = [](ibv_context* context, ibv_device_attr* out) {
      *out = device_of(context).limits;
      return 0;
    };
    table.query_port = query_port;
    table.query_gid_ex = query_gid_ex;
    table.query_pkey = [](ibv_context* context, uint8_t, int index, __be16* key) {
      *key = htons(device_of(context).pkeys.at(static_cast<std::size_t>(index)));
      return 0;
    };
    table.alloc_pd = [](ibv_context* context) {
      auto* made = new ibv_pd{};
      made->context = context;
      return made;
    };
    table.dealloc_pd = [](ibv_pd* domain) {
      delete domain;
      return 0;
    };
    table.reg_mr = [](ibv_pd* domain, void* address, size_t length, int access) {
      return add_region(domain, address, length, access);
    };
    table.reg_mr_iova2 = [](ibv_pd* domain, void* address, size_t length, uint64_t, unsigned access) {
      return add_region(domain, address, length, static_cast<int>(access));
    };
    table.reg_dmabuf_mr = [](ibv_pd* domain, uint64_t offset, size_t length, uint64_t iova, int fd,
                             int access) -> ibv_mr* {
      FakeDevice& device = device_of(domain->context);
      if (!device.takes_dmabuf) {
        errno = EOPNOTSUPP;
        return nullptr;
      }
      if ((offset ^ iova) % 4096 != 0) {  // as documented: the same offset in a page
        errno = EINVAL;
        return nullptr;
      }
      device.dmabuf_fd = fd;
      device.dmabuf_offset = offset;
      return add_region(domain, reinterpret_cast<void*>(iova), length, access);
    };
    table.dereg_mr = dereg_mr;
    table.create_comp_channel = [](ibv_context* context) {
      auto* made = new ibv_comp_channel{};
      made->context = context;
      made->fd = eventfd(0, EFD_CLOEXEC);
      return made;
    };
    table.destroy_comp_channel = [](ibv_comp_channel* channel) {
      close(channel->fd);
      delete channel;
      return 0;
    };
    table.create_cq = [](ibv_context* context, int entries, void*, ibv_comp_channel* channel,
                         int) -> ibv_cq* {
      auto* made = new FakeCompletionQueue{};
      made->context = context;
      made->channel = channel;
      made->capacity = entries;
      return made;
    };
    table.destroy_cq = [](ibv_cq* queue) {
      delete static_cast<FakeCompletionQueue*>(queue);
      return 0;
    };
    table.get_cq_event = [](ibv_comp_channel* channel, ibv_cq** queue, void**) {
      eventfd_t value = 0;
      *queue = nullptr;
      return eventfd_read(channel->fd, &value);
    };
    table.ack_cq_events = [](ibv_cq*, unsigned) {};
    table.create_srq = [](ibv_pd* domain, ibv_srq_init_attr* attributes) -> ibv_srq* {
      auto* made = new FakeShared{};
      made->context = domain->context;
      made->capacity = attributes->attr.max_wr;
      return made;
    };
    table.destroy_srq = [](ibv_srq* queue) {
      delete static_cast<FakeShared*>(queue);
      return 0;
    };
    table.create_qp = create_qp;
    table.modify_qp = modify_qp;
    table.destroy_qp = destroy_qp;
    table.get_async_event = [](ibv_context* context, ibv_async_event* event) {
      FakeDevice& device = device_of(context);
      eventfd_t value = 0;
      if (device.events.empty()) {
        errno = EAGAIN;
        return -1;
      }
      *event = device.events.front();
      device.events.pop_front();
      ++device.unacknowledged;
      if (device.events.empty()) (void)eventfd_read(context->async_fd, &value);
      if (event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED && device.flushes_late)
        current()->flush_receive(*static_cast<FakePair*>(event->element.qp));
      return 0;
    };
    table.ack_async_event = [](ibv_async_event* event) {
      for (const auto& device : current()->devices)
        if (device->unacknowledged != 0 && event != nullptr) {
          --device->unacknowledged;
          return;
        }
    };
    return table;
  }
};

}  // namespace towline::fabric::testing
