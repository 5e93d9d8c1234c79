// The backend's part of an agent's info.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "transports/cuda/backend.h"

namespace towline::cuda {

namespace {

// No context is made on a GPU by asking.
Reserve reserve_of(Backend& backend, uint32_t gpu) {
  const Settings& settings = backend.settings();
  if (settings.after_default_stream)
    return {0, "copies are ordered with the default stream (cuda.after_default_stream)"};
  if (!backend.device().in_use(gpu)) return {0, "this process does not use the GPU yet"};
  return backend.device().reserve(gpu, settings.reserve);
}

}  // namespace

std::string Backend::describe() {
  const Settings& settings = this->settings();
  nlohmann::json result = {{"beside", beside_name(settings.beside)}, {"gpus", nlohmann::json::array()}};
  if (settings.reserve.any()) {
    try {
      device().start();
    } catch (const core::Error& error) {
      result["none_reserved"] = error.message();
    }
    const std::vector<Gpu>& gpus = device().gpus();
    for (uint32_t gpu = 0; gpu < gpus.size(); ++gpu) {
      const Reserve reserve = reserve_of(*this, gpu);
      nlohmann::json entry = {{"gpu", uuid_text(gpus[gpu].uuid)}, {"reserved_sms", reserve.sms}};
      if (reserve.sms == 0) entry["none_reserved"] = reserve.why_not;
      result["gpus"].push_back(std::move(entry));
    }
  } else {
    result["none_reserved"] =
        "not asked for (tuning.cuda.reserved_sms, tuning.cuda.application_sms, tuning.cuda.green_context)";
  }
  if (const LandingRefusals refusals = landing_refusals(); refusals.count != 0)
    result["landing"] = {{"refused", refusals.count}, {"last_refusal", refusals.last}};
  return result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace towline::cuda
