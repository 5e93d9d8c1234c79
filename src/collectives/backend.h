// The backends of communicators, by name: built in, registered by the application, or loaded from a library.
#pragma once

#include <string>
#include <vector>

#include "towline/plugin/collective.h"

namespace towline::collectives {

// Any thread. Throws Error: kNotFound lists the known names.
const towline_collective_table_v1_t& find_backend(const std::string& name);
std::vector<std::string> backend_names();
// Throws Error: kAlreadyExists, kUnsupported.
void register_backend(const std::string& name, const towline_collective_table_v1_t* table);
void load_backend(const std::string& name, const std::string& path);

// Built in.
const towline_collective_table_v1_t& cpu_backend();
const towline_collective_table_v1_t& fake_backend();

// The CPU backend itself, for small operations that its communicator gives it without the table. Null: the backend is
// another, or its ranks are on several hosts.
class CpuBackend;
CpuBackend* cpu_backend_of_one_host(const towline_collective_table_v1_t& table,
                                    towline_collective_backend& backend) noexcept;

}  // namespace towline::collectives
