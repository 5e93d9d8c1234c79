// A worker's share of a post: what a backend is given in one submit.
#pragma once

#include <cstdint>

#include "agent/intrusive_list.h"
#include "towline/plugin/v1.h"

namespace towline {

class Ending;
class Link;
class Post;
class Worker;

// Under its worker's lock.
struct Part {
  Ending* owner = nullptr;
  Post* post = nullptr;  // the owner, if it is one: for what is prepared or submitted
  Worker* worker = nullptr;
  Link* link = nullptr;
  uint64_t begin = 0;  // bytes of the plan
  uint64_t end = 0;
  uint64_t slice_end = 0;  // of what is submitted of a paced post; else `end`
  towline_prepared* prepared = nullptr;
  uint32_t link_generation = 0;  // generation of `prepared`
  bool repick = false;           // `prepared` is for earlier picks: the backend may be able to follow
  uint64_t attempt = 0;          // the link's attempt for which establishing waits; 0: none yet
  std::size_t prepared_at = 0;   // in the link's list
  bool submitted = false;        // at the backend
  bool waiting = false;          // in the worker's establishing list
  bool message_only = false;     // the data has arrived, the message must still be sent
  bool refused = false;          // establishing it has failed in this post
  bool waited = false;           // it was not submitted by the post itself
  bool alone = false;            // it had its connection to itself: its time is a price
  bool revoked = false;          // to be released: its link found one of its regions revoked
  bool outdated = false;         // `prepared` is for earlier picks: it must be prepared anew
  IntrusiveHook<Part> hook;      // in flight, or waiting: never both
  uint64_t deadline_ns = UINT64_MAX;
};

}  // namespace towline
