// A program written for NIXL, with the headers where NIXL's installation has them.
#include <nixl.h>
#include <utils/common/nixl_log.h>
#include <utils/common/nixl_time.h>
#include <utils/serdes/serdes.h>

#include <iostream>

int main() {
  const uint64_t begin = nixlTime::getNs();
  nixlAgent agent("consumer", nixlAgentConfig{});
  nixlBackendH* backend = nullptr;
  const nixl_status_t made = agent.createBackend("UCX", {}, backend);
  nixlSerDes serdes;
  if (made != NIXL_SUCCESS || serdes.addStr("name", "consumer") != NIXL_SUCCESS ||
      nixlTime::getNs() < begin) {
    NIXL_ERROR << "createBackend: " << nixlEnumStrings::statusStr(made);
    return 1;
  }
  std::cout << "an agent with backend UCX\n";
}
