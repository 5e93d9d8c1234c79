// Reads the settings for reserved multiprocessors.
#pragma once

#include <functional>
#include <string>

#include "gpu/device.h"

namespace towline::cuda {

// The keys of a ReserveWish's members.
struct ReserveKeys {
  const char* sms;
  const char* application_sms;
  const char* context;
};

// setting(key) is "" where nothing is set. Throws Error that names the setting.
ReserveWish read_reserve_wish(const ReserveKeys& keys,
                              const std::function<std::string(const char* key)>& setting);

}  // namespace towline::cuda
