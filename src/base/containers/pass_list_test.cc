#include "base/containers/pass_list.h"

#include <gtest/gtest.h>

namespace towline {
namespace {

struct Counted {
  explicit Counted(int& count) : living(count) { ++living; }
  ~Counted() {
    --living;
    if (next != nullptr) list->release(next);
  }
  int& living;
  PassList<Counted>* list = nullptr;
  Counted* next = nullptr;
};
using List = PassList<Counted>;

TEST(PassListTest, WhatIsReleasedIsDeletedWhenTheOutermostPassEnds) {
  int living = 0;
  List list;
  Counted* const first = list.add(std::make_unique<Counted>(living));
  Counted* const second = list.add(std::make_unique<Counted>(living));
  {
    const List::Pass outer(list);
    EXPECT_TRUE(list.in_pass());
    {
      const List::Pass inner(list);
      const uint32_t seen = list.each([&](Counted& object) {
        if (&object == first) list.release(second);
        return 1u;
      });
      EXPECT_EQ(seen, 1u);
    }
    EXPECT_EQ(living, 2);
  }
  EXPECT_EQ(living, 1);
  EXPECT_TRUE(list.any([&](const Counted& object) { return &object == first; }));
  list.release(first);  // outside of a pass
  EXPECT_EQ(living, 0);
  EXPECT_FALSE(list.any([](const Counted&) { return true; }));
}

TEST(PassListTest, OneMayReleaseItself) {
  int living = 0;
  List list;
  for (int i = 0; i < 3; ++i) list.add(std::make_unique<Counted>(living));
  {
    const List::Pass pass(list);
    EXPECT_EQ(list.each([&](Counted& object) { return list.release(&object), 1u; }), 3u);
  }
  EXPECT_EQ(living, 0);
}

TEST(PassListTest, ADestructorMayReleaseAnother) {
  int living = 0;
  List list;
  Counted* const first = list.add(std::make_unique<Counted>(living));
  first->list = &list;
  first->next = list.add(std::make_unique<Counted>(living));
  {
    const List::Pass pass(list);
    list.release(first);
  }
  EXPECT_EQ(living, 0);
}

TEST(PassListTest, WhatIsAddedInAPassHasItsTurnInIt) {
  int living = 0;
  List list;
  Counted* const first = list.add(std::make_unique<Counted>(living));
  Counted* second = nullptr;
  const uint32_t seen = list.each([&](Counted&) {
    if (second == nullptr) second = list.add(std::make_unique<Counted>(living));
    return 1u;
  });
  EXPECT_EQ(seen, 2u);
  list.release(first);
  list.release(second);
}

}  // namespace
}  // namespace towline
