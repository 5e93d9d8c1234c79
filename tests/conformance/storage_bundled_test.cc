// Backends that come with Towline as plugins: how they are loaded, and what is said where one is not.
#include <fstream>
#include <initializer_list>
#include <string>

#include "storage_fixture.h"

namespace towline::conformance {
namespace {

std::string refusal(const Agent& agent, const std::string& uri) {
  try {
    (void)agent.query_storage(uri);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kUnsupported) << error.what();
    return error.what();
  }
  ADD_FAILURE() << uri << " was not refused";
  return {};
}

void expect_says(const Agent& agent, const std::string& uri, const std::string& part) {
  const std::string text = refusal(agent, uri);
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(BundledStorage, ASchemeWithoutItsBackendSaysWhichPluginToName) {
  const Agent agent("without", {.listen = "none"});
  expect_says(agent, "gds:/x", "the setting plugins = \"gds\" loads the one for gds:");
  expect_says(agent, "hf3fs:/x", "the setting plugins = \"hf3fs\" loads the one for hf3fs:");
  expect_says(agent, "nixl:/x", "the setting plugins = \"nixl\" loads the one for nixl:");
#ifdef TOWLINE_OBJECT_PLUGIN
  expect_says(agent, "s3://bucket/x", "the setting plugins = \"object\" loads the one for s3:");
  expect_says(agent, "az://bucket/x", "the setting plugins = \"object\" loads the one for az:");
  expect_says(agent, "gs://bucket/x", "the setting plugins = \"object\" loads the one for gs:");
#endif
  EXPECT_EQ(refusal(agent, "ftp://host/x").find("plugins = "), std::string::npos);
}

TEST(BundledStorage, ASchemeThatBackendsLeavesOutSaysSo) {
  const Agent agent("left-out", {.listen = "none", .backends = "posix", .config = TOWLINE_GDS});
  expect_says(agent, "gds:/x", "the setting backends leaves it out: add gds there");
}

// Its plugin is loaded already: to name it in a setting would help nobody.
TEST(BundledStorage, ABackendWhoseLibraryIsAbsentSaysThatAlone) {
  const Agent agent(
      "no-library",
      {.listen = "none", .config = "plugins = \"gds\"\n[gds]\nlibrary = \"/nowhere/libcufile.so\"\n"});
  expect_says(agent, "gds:/x", "gds: not usable here");
  EXPECT_EQ(refusal(agent, "gds:/x").find("plugins = "), std::string::npos) << refusal(agent, "gds:/x");
}

TEST(BundledStorage, ABackendIsLoadedWhenOnlyBackendsNamesIt) {
  const FolderPlace place("gds");
  std::vector<std::byte> contents(100'000);
  stamp_bytes(contents.data(), contents.size(), 7);
  write_file(place.uri("file").substr(4), contents);
  for (const char* config : {"backends = \"posix,gds\"\n", ""}) {
    const Agent agent("named",
                      {.listen = "none",
                       .backends = *config != 0 ? "" : "posix,gds",
                       .config = std::string(config) + "[gds]\nlibrary = \"" TOWLINE_FAKE_CUFILE "\"\n"});
    EXPECT_EQ(agent.query_storage(place.uri("file")).bytes, contents.size());
    const Region file = agent.register_storage(place.uri("file"));
    std::vector<std::byte> memory(contents.size());
    const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
    const Post post = agent.copy(agent.block_list(file.blocks(0, contents.size()))[all],
                                 agent.block_list(Blocks::at(memory.data(), memory.size()))[all]);
    EXPECT_EQ(post.wait(kPatience), Status::kOk);
    EXPECT_TRUE(memory == contents);
  }
}

#ifdef TOWLINE_OBJECT_PLUGIN
TEST(BundledStorage, OfAPluginOfSeveralBackendsOnlyTheNamedOneIsTaken) {
  const Agent agent("one", {.listen = "none", .backends = "posix,azure"});
  const std::string info = agent.info();
  EXPECT_NE(info.find("\"azure\""), std::string::npos) << info;
  expect_says(agent, "s3://bucket/key", "the setting backends leaves it out: add object there");
}
#endif

TEST(BundledStorage, APluginThatCanNotBeLoadedSaysWhy) {
  const support::TemporaryFolder folder;
  std::ofstream(folder / "libtowline_gds.so") << "not a library";
  for (const char* named : {"backends = \"posix,gds\"\n", "plugins = \"gds\"\n"}) {
    const Agent agent("broken", {.listen = "none",
                                 .config = std::string(named) + "plugin_path = \"" + folder.path() + "\"\n"});
    expect_says(agent, "gds:/x", "loading the plugin gds failed");
  }
}

}  // namespace
}  // namespace towline::conformance
