/* libtcpx_p2p from C, linked statically: two sessions, one transfer. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <tcpx_p2p.h>

#define CHECK(call)                                                                         \
  do {                                                                                      \
    const int32_t status = (call);                                                          \
    if (status < 0) {                                                                       \
      fprintf(stderr, "%s: %s (%s)\n", #call, tcpx_last_error(), tcpx_status_text(status)); \
      return 1;                                                                             \
    }                                                                                       \
  } while (0)

static const uint64_t kMinute = 60000000000u;

struct dial {
  tcpx_session_t* session;
  char address[256];
  tcpx_connection_t* connection;
};

static void* dial(void* argument) {
  struct dial* const mine = argument;
  (void)tcpx_session_connect(mine->session, mine->address, kMinute, &mine->connection);
  return NULL;
}

int main(int argc, char** argv) {
  tcpx_session_options_t options = {sizeof options};
  struct dial dialled = {0};
  char from[64] = "from C";
  char to[64] = "";
  tcpx_session_t* b = NULL;
  tcpx_connection_t* accepted = NULL;
  tcpx_transfer_t *send = NULL, *receive = NULL;
  uint64_t mine = 0, theirs = 0;
  pthread_t thread;
  if (argc != 2) return 2;
  options.plugins = argv[1];
  options.listen = "127.0.0.1:0";
  CHECK(tcpx_session_create(&options, &dialled.session));
  CHECK(tcpx_session_create(&options, &b));
  CHECK(tcpx_session_address(b, dialled.address, sizeof dialled.address));
  CHECK(tcpx_memory_register(dialled.session, from, sizeof from, TCPX_HOST_MEMORY, &mine));
  CHECK(tcpx_memory_register(b, to, sizeof to, TCPX_HOST_MEMORY, &theirs));
  if (pthread_create(&thread, NULL, dial, &dialled) != 0) return 1;
  CHECK(tcpx_session_accept(b, kMinute, &accepted));
  pthread_join(thread, NULL);
  if (dialled.connection == NULL) return 1;
  CHECK(tcpx_post_receive(accepted, theirs, 0, sizeof to, 1, &receive));
  CHECK(tcpx_post_send(dialled.connection, mine, 0, sizeof from, 1, &send));
  if (tcpx_wait(receive, kMinute) != TOWLINE_OK || tcpx_wait(send, kMinute) != TOWLINE_OK) return 1;
  if (strcmp(to, "from C") != 0 || tcpx_transfer_bytes(receive) != sizeof to) return 1;
  CHECK(tcpx_release(send, kMinute));
  CHECK(tcpx_release(receive, kMinute));
  CHECK(tcpx_connection_close(dialled.connection));
  CHECK(tcpx_connection_close(accepted));
  CHECK(tcpx_session_destroy(dialled.session));
  CHECK(tcpx_session_destroy(b));
  printf("%s\n", tcpx_version());
  return 0;
}
