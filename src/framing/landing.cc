#include "framing/landing.h"

namespace towline::framing {

namespace {

class HostedLander final : public Lander {
 public:
  HostedLander(const towline_landing_table_v1& table, towline_landing* landing, void* gather, void* scatter)
      : table_(table),
        landing_(landing),
        memory_{static_cast<uint8_t*>(gather), static_cast<uint8_t*>(scatter)} {}
  ~HostedLander() override { table_.close(landing_); }

  uint8_t* slot(Way way, uint32_t index) const noexcept override {
    return memory_[static_cast<uint32_t>(way)] + std::size_t{index} * kLandingSlotBytes;
  }
  Status ready(uint64_t device) noexcept override {
    return static_cast<Status>(table_.ready(landing_, device));
  }
  Status begin(Way way, uint32_t index, uint64_t device, std::span<const LandingPiece> pieces,
               int32_t& vendor_code) noexcept override {
    return static_cast<Status>(table_.begin(landing_, static_cast<uint32_t>(way), index, device,
                                            pieces.data(), static_cast<uint32_t>(pieces.size()),
                                            &vendor_code));
  }
  Status reach(void* address, uint64_t bytes) noexcept override {
    if (!unpacks()) return Status::kUnsupported;
    return static_cast<Status>(table_.reach(landing_, address, bytes));
  }
  Status reach_pool(towline_landing_pool* pool) noexcept override {
    if (!unpacks() || table_.reach_pool == nullptr) return Status::kUnsupported;
    return static_cast<Status>(table_.reach_pool(landing_, pool));
  }
  Status unpack(uint32_t index, uint64_t device, std::span<const LandingPiece> fragments,
                std::span<const LandingPiece> pieces, int32_t& vendor_code) noexcept override {
    if (!unpacks()) return Status::kUnsupported;
    return static_cast<Status>(table_.unpack(landing_, index, device, fragments.data(),
                                             static_cast<uint32_t>(fragments.size()), pieces.data(),
                                             static_cast<uint32_t>(pieces.size()), &vendor_code));
  }
  Status poll(Way way, uint32_t index, uint64_t now_ns, int32_t& vendor_code) noexcept override {
    return static_cast<Status>(
        table_.poll(landing_, static_cast<uint32_t>(way), index, now_ns, &vendor_code));
  }

 private:
  // The host zeroes what an older plugin lacks.
  [[nodiscard]] bool unpacks() const noexcept { return table_.reach != nullptr && table_.unpack != nullptr; }

  const towline_landing_table_v1& table_;
  towline_landing* const landing_;
  uint8_t* const memory_[2];
};

}  // namespace

std::unique_ptr<Lander> make_hosted_lander(const plugin::Host& host, uint64_t device, Status& status) {
  const towline_landing_table_v1* table = nullptr;
  towline_backend* backend = nullptr;
  status = static_cast<Status>(host.landing(&table, &backend));
  if (status != Status::kOk) return nullptr;
  towline_landing* landing = nullptr;
  void* gather = nullptr;
  void* scatter = nullptr;
  status = static_cast<Status>(
      table->open(backend, device, kLandingSlots, kLandingSlotBytes, &landing, &gather, &scatter));
  if (status != Status::kOk) return nullptr;
  return std::make_unique<HostedLander>(*table, landing, gather, scatter);
}

}  // namespace towline::framing
