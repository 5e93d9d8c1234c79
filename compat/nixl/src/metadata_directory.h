// The directory in which agents publish metadata under their names: etcd, through Towline's directories, or torch's TCPStore.
//
// Keys are {namespace}/{agent}/{label}, the values frames. Calls that throw also block, up to their deadline:
// they are made on the threads of MetadataCalls.
#pragma once

#include <towline/towline.hpp>

#include <chrono>
#include <memory>
#include <string>

#include "settings.h"

namespace towline::nixl {

// Called when something that an agent published is gone.
class DirectoryListener {
 public:
  virtual ~DirectoryListener() = default;
  virtual void gone(const std::string& agent_name) = 0;
};

class MetadataDirectory {
 public:
  virtual ~MetadataDirectory() = default;
  // Puts a frame under this agent's name, for as long as the agent lives. Publishing again replaces it. All
  // of these throw Error.
  virtual void publish(const std::string& label, const std::string& frame) = 0;
  // Returns an agent's frame. Waits up to `wait` for it; kNotFound if it does not exist by then. After this,
  // poll() reports when something of that agent is gone.
  virtual std::string fetch(const std::string& name, const std::string& label,
                            std::chrono::nanoseconds wait) = 0;
  // Removes all of this agent's labels.
  virtual void withdraw() = 0;
  // Reports new events to the listener. Neither blocks nor throws.
  virtual void poll(DirectoryListener& listener) noexcept = 0;
};

// The directory that the settings name; null when they name none. Throws Error for one that can't be opened.
std::unique_ptr<MetadataDirectory> open_directory(const Agent& agent, const Settings& settings);

}  // namespace towline::nixl
