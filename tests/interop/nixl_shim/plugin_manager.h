// The inside of NIXL that test_transfer.cpp names for its tracing cases, which skip themselves without a
// plugin.
#pragma once

#include <string>

struct nixlPluginManager {
  static nixlPluginManager& getInstance() {
    static nixlPluginManager manager;
    return manager;
  }
  void addPluginDirectory(const std::string&) {}
};
