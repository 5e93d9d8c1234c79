/* A plugin of an ABI that does not exist. */
#include <towline/plugin/v1.h>

__attribute__((visibility("default"))) const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
  static const towline_plugin_v1_t plugin = {
      .struct_size = sizeof(towline_plugin_v1_t), .major = 99, .name = "future"};
  return number == 0 ? &plugin : NULL;
}
