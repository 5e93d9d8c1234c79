// A real emulator of Azure's blobs: Azurite.
#pragma once

#include <cstdint>
#include <string>

#include "support/server_process.h"
#include "support/temporary_folder.h"

namespace towline::support {

class AzureServer {
 public:
  static constexpr const char* kMissing =
      "there is no azurite-blob here: scripts/install-deps test installs it where there is npm";
  // The emulator's account, which is public.
  static constexpr const char* kAccount = "devstoreaccount1";
  static constexpr const char* kKey =
      "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

  static std::string program();  // empty: not installed
  AzureServer();                 // with the container "bucket"

  void start();  // waits until it answers
  void stop(int signal) { process_.stop(signal); }
  [[nodiscard]] uint16_t port() const { return port_; }
  // TOML for an agent that is to reach it through a port: itself, or a proxy before it.
  [[nodiscard]] static std::string config(uint16_t port, const std::string& more = {});
  [[nodiscard]] static std::string endpoint(uint16_t port);

 private:
  void make_container() const;

  TemporaryFolder folder_;
  uint16_t port_ = 0;
  ServerProcess process_;
};

}  // namespace towline::support
