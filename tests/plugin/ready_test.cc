#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "towline/plugin/backend.hpp"

namespace towline {
namespace {

struct Owner {
  struct Scope {
    explicit Scope(Owner& given) : owner(given) { ++owner.depth; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { --owner.depth; }
    Owner& owner;
  };
  void handle(uint32_t events) {
    seen = events;
    if (events == 13) throw std::runtime_error("Too many open files");
  }
  void broken(const char* text) noexcept {
    why = text;
    depth_when_broken = depth;
  }
  Scope scope() { return Scope(*this); }

  uint32_t seen = 0;
  int depth = 0;
  int depth_when_broken = 0;
  std::string why;
};

TEST(PluginReady, WhatAHandlerThrowsIsToldToItsObjectWhileThatStillLives) {
  const towline_ready_fn ready = plugin::ready<&Owner::handle>;
  Owner owner;
  ready(&owner, 1);
  EXPECT_EQ(owner.seen, 1U);
  EXPECT_EQ(owner.why, "");
  ready(&owner, 13);
  EXPECT_EQ(owner.why, "Too many open files");
  EXPECT_EQ(owner.depth_when_broken, 1);
  EXPECT_EQ(owner.depth, 0);
}

}  // namespace
}  // namespace towline
