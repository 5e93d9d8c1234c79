#include "gpu/reserve_wish.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "base/error.h"

namespace towline::cuda {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& wanted) {
  fail(Status::kInvalidArgument, "{} = \"{}\": expected {}", key, value, wanted);
}

uint64_t read(const std::string& key, const std::string& value, uint64_t most, const char* wanted) {
  if (value.empty()) return 0;
  std::string_view digits = value;
  const bool hex = digits.starts_with("0x");
  if (hex) digits.remove_prefix(2);
  uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, hex ? 16 : 10);
  if (error != std::errc{} || end != digits.data() + digits.size() || number > most)
    refuse(key, value, wanted);
  return number;
}

}  // namespace

ReserveWish read_reserve_wish(const ReserveKeys& keys,
                              const std::function<std::string(const char* key)>& setting) {
  constexpr const char* kSms = "a number of multiprocessors from 0 to 1024";
  const std::string application = setting(keys.application_sms);
  const std::string context = setting(keys.context);
  ReserveWish wish;
  wish.sms = static_cast<uint32_t>(read(keys.sms, setting(keys.sms), 1024, kSms));
  wish.application_sms = static_cast<uint32_t>(read(keys.application_sms, application, 1024, kSms));
  wish.context = read(keys.context, context, UINT64_MAX, "the value of a CUgreenCtx, such as 0x55d0c0a81200");
  if (wish.context != 0 && (wish.sms != 0 || wish.application_sms != 0))
    refuse(keys.context, context,
           fmt::format("0, since {} or {} says already what is reserved", keys.sms, keys.application_sms));
  if (wish.sms != 0 && wish.application_sms != 0)
    refuse(keys.application_sms, application,
           fmt::format("0, since {} says already what is reserved", keys.sms));
  return wish;
}

}  // namespace towline::cuda
