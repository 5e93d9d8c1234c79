#include <towline/towline.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "fabric/topology.h"

namespace towline::fabric {
namespace {

using nlohmann::json;

json names_of(const std::vector<std::string>& rails, uint32_t mask) {
  json names = json::array();
  for (std::size_t i = 0; i < rails.size() && i < 32; ++i)
    if ((mask >> i & 1) != 0) names.push_back(rails[i]);
  return names;
}

}  // namespace

std::string describe_topology(const std::string& root) {
  const std::vector<RdmaPort> ports = read_rdma_ports(root);
  const RailChoice choice = choose_rails(ports);
  std::vector<PciPlace> places;  // of the chosen rails
  std::vector<std::string> rails;
  std::set<int32_t> nodes;
  json port_list = json::array();
  for (const RdmaPort& port : ports) {
    const std::string rail = port.rail();
    const bool chosen = std::find(choice.rails.begin(), choice.rails.end(), rail) != choice.rails.end();
    if (chosen) {
      places.push_back(port.place);
      rails.push_back(rail);
    }
    nodes.insert(port.place.numa_node);
    port_list.push_back({{"rail", rail},
                         {"device", port.device},
                         {"port", port.port},
                         {"address", port.place.address()},
                         {"numa_node", port.place.numa_node},
                         {"driver", port.driver},
                         {"state", port.state},
                         {"rate", port.rate},
                         {"software", port.software},
                         {"chosen", chosen}});
  }
  json gpus = json::array();
  for (const PciPlace& gpu : read_gpus(root)) {
    nodes.insert(gpu.numa_node);
    gpus.push_back({{"address", gpu.address()},
                    {"numa_node", gpu.numa_node},
                    {"near", names_of(rails, nearest_rails(places, gpu))}});
  }
  json node_list = json::array();
  for (const int32_t node : nodes)
    if (node >= 0)
      node_list.push_back({{"id", node}, {"near", names_of(rails, rails_of_node(places, node))}});
  const json all = {{"schema", TOWLINE_JSON_SCHEMA},
                    {"gpus", gpus},
                    {"ports", port_list},
                    {"numa_nodes", node_list},
                    {"choice", choice.reason}};
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace towline::fabric
