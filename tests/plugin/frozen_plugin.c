/* A plugin as one was built against the first release: it sees no headers but those in frozen/. It copies
 * within one agent. Built several times: as it is, with the tables of another release (VARIANT), and always with
 * two backends in one library, of which the second ends its parts later.
 *
 * Settings, for tests: frozen.block_on (a named pipe that add reads first), frozen.token_bytes, frozen.address_bytes. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <towline/plugin/v1.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
  AS_IT_IS,
  FEWER_SLOTS,
  MORE_SLOTS,
  TOO_SMALL,
  NO_RESULT_SIZE,
  NO_SUBMIT,
  SOME_STREAMS,
  NO_MOVES,
  WILD_MOVE,
  NO_NAME,
  NO_OPEN,
  NO_BACKEND,
  NO_TEXTS,
};
#ifndef VARIANT
#define VARIANT AS_IT_IS
#endif

enum { MOST_LATE = 64 };
enum { OP_READ = 0, OP_WRITE = 1, DRAM = 0, REGION_GUARDED = 1 }; /* as in towline.h */

struct towline_backend {
  towline_host_v1_t host;
  int later;
  uint64_t late[MOST_LATE];
  size_t late_bytes[MOST_LATE];
  int late_count;
};

struct towline_connection {
  towline_backend* backend;
  void* peer;
};

typedef struct {
  towline_prepared base;
  uint32_t op;
} prepared_t;

static long setting(const towline_backend* b, const char* key) {
  return strtol(b->host.config(b->host.context, key, "0"), NULL, 10);
}

static int32_t refuse(const towline_backend* b, int32_t status, const char* text) {
  b->host.fail(b->host.context, text);
  return status;
}

static unsigned char pattern(size_t at) { return (unsigned char)(at * 131 + 7); }

static void fill(void* to, size_t from, size_t bytes) {
  for (size_t i = from; i < bytes; ++i) ((unsigned char*)to)[i] = pattern(i);
}

static int is_filled(const void* with, size_t from, size_t bytes) {
  for (size_t i = from; i < bytes; ++i)
    if (((const unsigned char*)with)[i] != pattern(i)) return 0;
  return 1;
}

/* ---- memory */

static int32_t add(towline_backend* b, const towline_region_args* args, towline_registration** registration,
                   void* token, size_t* token_bytes) {
  (void)args;
  /* Until somebody has written to the named pipe: as long as pinning much memory takes. */
  const int pipe = open(b->host.config(b->host.context, "frozen.block_on", ""), O_RDONLY);
  char any;
  if (pipe >= 0 && read(pipe, &any, 1) < 0) return TOWLINE_IO;
  if (pipe >= 0) close(pipe);
  const size_t bytes = (size_t)setting(b, "frozen.token_bytes");
  fill(token, 0, bytes);
  *token_bytes = bytes;
  *registration = (towline_registration*)b;
  return TOWLINE_OK;
}

static void remove_region(towline_backend* b, towline_registration* registration) {
  (void)b;
  (void)registration;
}

static int32_t import(towline_connection* c, const towline_region_args* args, const void* token,
                      size_t token_bytes, towline_import** import, char how[64]) {
  if ((args->region.flags & REGION_GUARDED) != 0)
    return refuse(c->backend, TOWLINE_UNSUPPORTED, "guarded regions need an owner that checks");
  if (token_bytes != (size_t)setting(c->backend, "frozen.token_bytes") || !is_filled(token, 0, token_bytes))
    return refuse(c->backend, TOWLINE_CORRUPT, "the token is not the one that add wrote");
  *import = (towline_import*)c;
  strcpy(how, "own memory");
  return TOWLINE_OK;
}

static void unimport(towline_connection* c, towline_import* import) {
  (void)c;
  (void)import;
}

/* ---- connection */

static int32_t address(towline_backend* b, void* address, size_t* bytes) {
  const towline_identity* self = b->host.self(b->host.context);
  const size_t padded = (size_t)setting(b, "frozen.address_bytes");
  const size_t all = padded > 16 ? padded : 16;
  if (self->struct_size < TOWLINE_IDENTITY_MINIMUM || all > *bytes) return TOWLINE_NO_SPACE;
  memcpy(address, self->incarnation, 16);
  fill(address, 16, all);
  *bytes = all;
  return TOWLINE_OK;
}

static int32_t probe(towline_backend* b, const towline_identity* peer, const void* address, size_t bytes) {
  const towline_identity* self = b->host.self(b->host.context);
  if (memcmp(peer->incarnation, self->incarnation, 16) != 0)
    return refuse(b, TOWLINE_UNREACHABLE, "it reaches no agent but this one");
  if (memcmp(address, self->incarnation, 16) != 0 || !is_filled(address, 16, bytes))
    return refuse(b, TOWLINE_CORRUPT, "the address is not the one that was given");
  return TOWLINE_OK;
}

static int32_t connect(towline_backend* b, uint32_t worker, const towline_identity* identity,
                       const void* address, size_t bytes, uint64_t deadline_ns, void* peer,
                       towline_connection** connection) {
  (void)worker, (void)identity, (void)address, (void)bytes, (void)deadline_ns;
  *connection = calloc(1, sizeof **connection);
  (*connection)->backend = b;
  (*connection)->peer = peer;
  b->host.connection_event(b->host.context, peer, TOWLINE_CONNECTION_UP, TOWLINE_OK, "");
  return TOWLINE_OK;
}

static void complete_late(towline_backend* b) {
  const int count = b->late_count;
  for (int i = 0; i < count; ++i) {
    towline_part_result result;
    memset(&result, 0, sizeof result);
    result.struct_size = VARIANT == NO_RESULT_SIZE ? 0 : sizeof result;
    result.fences = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;
    result.bytes = b->late_bytes[i];
    b->host.complete(b->host.context, b->late[i], &result);
  }
  memmove(b->late, b->late + count, (size_t)(b->late_count - count) * sizeof *b->late);
  b->late_count -= count;
}

static void disconnect(towline_connection* c) {
  complete_late(c->backend);
  free(c);
}

static int32_t describe(towline_connection* c, char* json, size_t capacity) {
  (void)c;
  strncpy(json, "{\"transport\": \"frozen\"}", capacity);
  return TOWLINE_OK;
}

/* ---- data */

static int32_t prepare(towline_connection* c, const towline_prepare_args* args, towline_prepared** prepared) {
  prepared_t* made = calloc(1, sizeof *made);
  made->base.struct_size = sizeof made->base;
  made->base.flags = c->backend->later ? 0 : TOWLINE_PREPARED_CONCURRENT | TOWLINE_PREPARED_IMMEDIATE;
  made->base.connection = c;
  made->base.plan = args->plan;
  made->op = args->op;
  *prepared = &made->base;
  return TOWLINE_OK;
}

static void unprepare(towline_prepared* prepared) { free(prepared); }

/* Where a block of a list lies, and how long it is. */
static char* block(const towline_list* list, uint64_t index, uint64_t* length) {
  if (list->flat != NULL) {
    *length = list->flat[index].length;
    return (char*)(uintptr_t)list->flat[index].address;
  }
  const towline_extent* extent = list->extents;
  while (index >= extent->first_block + extent->blocks) ++extent;
  uint64_t left = index - extent->first_block;
  uint64_t address = extent->address;
  for (uint32_t d = extent->dimensions; d-- > 0; left /= extent->count[d])
    address += left % extent->count[d] * extent->stride[d];
  *length = extent->length;
  return (char*)(uintptr_t)address;
}

static int32_t send(towline_connection* c, const void* message, size_t bytes) {
  c->backend->host.message(c->backend->host.context, c->peer, message, bytes);
  return TOWLINE_OK;
}

static int32_t submit(towline_prepared* prepared, const towline_submit_args* args) {
  const prepared_t* mine = (const prepared_t*)prepared;
  const towline_plan* plan = prepared->plan;
  towline_backend* b = prepared->connection->backend;
  if (b->later && b->late_count == MOST_LATE) return TOWLINE_AGAIN;
  uint64_t at = 0; /* of the plan, where the block begins */
  for (uint64_t r = 0; r < plan->run_count; ++r) {
    for (uint32_t i = 0; i < plan->runs[r].count; ++i) {
      uint64_t length;
      char* local = block(plan->local, plan->runs[r].local_block + i * plan->local_step, &length);
      char* remote = block(plan->remote, plan->runs[r].remote_block + i * plan->remote_step, &length);
      const uint64_t begin = args->begin > at ? args->begin - at : 0;
      const uint64_t end = args->end < at + length ? (args->end > at ? args->end - at : 0) : length;
      if (begin < end && mine->op == OP_WRITE) memmove(remote + begin, local + begin, end - begin);
      if (begin < end && mine->op == OP_READ) memmove(local + begin, remote + begin, end - begin);
      at += length;
    }
  }
  if (args->message_bytes != 0) (void)send(prepared->connection, args->message, args->message_bytes);
  if (!b->later) return TOWLINE_OK;
  b->late_bytes[b->late_count] = args->end - args->begin;
  b->late[b->late_count++] = args->cookie;
  return TOWLINE_IN_PROGRESS;
}

static void cancel(towline_connection* c, uint64_t cookie) {
  (void)c;
  (void)cookie;
}

static uint32_t progress(towline_backend* b, uint32_t worker, uint64_t now_ns) {
  (void)worker;
  (void)now_ns;
  const int count = b->late_count;
  complete_late(b);
  return (uint32_t)count;
}

static uint32_t arm(towline_backend* b, uint32_t worker) {
  (void)worker;
  return b->late_count != 0;
}

static void disarm(towline_backend* b, uint32_t worker) {
  (void)b;
  (void)worker;
}

/* ---- the plugins */

/* A table of a release that has more than the frozen one, or not all of it. What lies behind a table's own end
 * is nobody's business: calling it ends the process. The first three are slots that the library has got since
 * the frozen release (landing; repick, view, view_forget): this plugin has none of them. */
#define NOWHERE \
  { NULL, NULL, NULL, (void*)1, (void*)1, (void*)1 }
#define TABLE(type)  \
  static struct {    \
    type table;      \
    void* beyond[6]; \
  }

#define SIZE(type, minimum)                                   \
  (VARIANT == FEWER_SLOTS  ? (minimum)                        \
   : VARIANT == MORE_SLOTS ? sizeof(type) + 6 * sizeof(void*) \
                           : sizeof(type))

TABLE(towline_memory_table_v1)
memory = {{0, add, remove_region, import, unimport, NULL}, NOWHERE};
TABLE(towline_connection_table_v1)
connection = {{0, address, probe, connect, disconnect, describe, NULL, NULL}, NOWHERE};
TABLE(towline_data_table_v1)
data = {
    {0, prepare, unprepare, submit, send, cancel, progress, arm, disarm, NULL, NULL, NULL, NULL, NULL, NULL},
    NOWHERE};

static void forget(towline_capture* capture) { (void)capture; }

static const void* query_table(const char* id, uint32_t version) {
  memory.table.struct_size = SIZE(towline_memory_table_v1, TOWLINE_MEMORY_TABLE_V1_MINIMUM);
  connection.table.struct_size = SIZE(towline_connection_table_v1, TOWLINE_CONNECTION_TABLE_V1_MINIMUM);
  data.table.struct_size = SIZE(towline_data_table_v1, TOWLINE_DATA_TABLE_V1_MINIMUM);
  if (VARIANT == NO_SUBMIT) data.table.submit = NULL;
  if (VARIANT == SOME_STREAMS) data.table.capture_forget = forget;
  if (VARIANT == TOO_SMALL) data.table.struct_size = TOWLINE_DATA_TABLE_V1_MINIMUM - sizeof(void*);
  if (VARIANT == FEWER_SLOTS) { /* behind the end, where the slots that came later would be */
    memset((char*)&memory + memory.table.struct_size, 1, sizeof memory.table - memory.table.struct_size);
    memset((char*)&connection + connection.table.struct_size, 1,
           sizeof connection.table - connection.table.struct_size);
    memset((char*)&data + data.table.struct_size, 1, sizeof data.table - data.table.struct_size);
  }
  if (version != 1) return NULL;
  if (strcmp(id, "memory") == 0) return &memory;
  if (strcmp(id, "connection") == 0) return &connection;
  return strcmp(id, "data") == 0 ? &data : NULL;
}

static int32_t usable(char* reason, size_t capacity) {
  (void)reason;
  (void)capacity;
  return TOWLINE_OK;
}

static int32_t open_as(const towline_host_v1_t* host, towline_backend** backend, int later) {
  if (host->struct_size < TOWLINE_HOST_V1_MINIMUM) return TOWLINE_UNSUPPORTED;
  if (VARIANT == NO_BACKEND) return TOWLINE_OK;
  *backend = calloc(1, sizeof **backend);
  memcpy(&(*backend)->host, host, sizeof *host < host->struct_size ? sizeof *host : host->struct_size);
  (*backend)->later = later;
  return TOWLINE_OK;
}

static int32_t open_now(const towline_host_v1_t* host, towline_backend** backend) {
  return open_as(host, backend, 0);
}

static int32_t open_later(const towline_host_v1_t* host, towline_backend** backend) {
  return open_as(host, backend, 1);
}

static void close_backend(towline_backend* backend) { free(backend); }

EXPORT const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
  static const towline_move_v1 moves[] = {{VARIANT == WILD_MOVE ? (size_t)1 << 60 : sizeof(towline_move_v1),
                                           1 << OP_READ | 1 << OP_WRITE, 1 << DRAM, 1 << DRAM,
                                           TOWLINE_WHERE_SAME_PROCESS}};
  static towline_plugin_v1_t plugins[2];
  if (number >= 2) return NULL;
  towline_plugin_v1_t* plugin = &plugins[number];
  plugin->struct_size = SIZE(towline_plugin_v1_t, TOWLINE_PLUGIN_V1_MINIMUM);
  if (VARIANT == MORE_SLOTS) plugin->struct_size = sizeof *plugin; /* the other is right behind */
  plugin->major = TOWLINE_PLUGIN_MAJOR;
  plugin->traits = TOWLINE_TRAIT_ONE_SIDED;
  plugin->name = number == 0 ? "frozen" : "frozen_later";
  plugin->version = "1.0";
  plugin->description = "copies within one agent";
  plugin->moves = moves;
  plugin->move_count = 1;
  plugin->cost = 6 + number;
  plugin->fence_reason = "done when submit returns";
  plugin->usable = usable;
  plugin->open = number == 0 ? open_now : open_later;
  plugin->close = close_backend;
  plugin->query_table = query_table;
  if (VARIANT == NO_MOVES) plugin->moves = NULL;
  if (VARIANT == WILD_MOVE) plugin->move_count = 2;
  if (VARIANT == NO_NAME) plugin->name = NULL;
  if (VARIANT == NO_OPEN) plugin->open = NULL;
  if (VARIANT == NO_TEXTS) plugin->version = plugin->description = plugin->fence_reason = NULL;
  if (VARIANT == FEWER_SLOTS) memset(&plugin->describe, 1, sizeof plugin->describe); /* behind its end */
  return plugin;
}
