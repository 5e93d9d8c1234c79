#include "terminal.h"
#include "test_file.h"

#include <gtest/gtest.h>

#include <memory>

namespace tool {
namespace {

TEST(Terminal, AFileGetsNeitherColourNorABar) {
  const File file{std::tmpfile()};
  const Terminal terminal{file.get(), true};
  EXPECT_FALSE(terminal.interactive());
  EXPECT_EQ(terminal.bold("x"), "x");
  {
    ProgressBar bar{terminal, "replay"};
    bar.update(0.5, "half");
  }
  EXPECT_EQ(std::ftell(file.get()), 0);
}

TEST(Terminal, WidthCountsWhatIsSeen) {
  EXPECT_EQ(visible_width("abc"), 3u);
  EXPECT_EQ(visible_width("\033[1mabc\033[0m"), 3u);
  EXPECT_EQ(visible_width("━╸"), 2u);
}

TEST(Terminal, TablesAlignTheirColumns) {
  const File file{std::tmpfile()};
  Table table{{{"name", Table::Align::kLeft}, {"GB/s"}}};
  table.add({"shm", "17.10"});
  table.add({"loopback", "3.6"});
  EXPECT_EQ(table.render(Terminal{file.get(), true}),
            "name       GB/s\n"
            "shm       17.10\n"
            "loopback    3.6\n");
}

TEST(Terminal, TablesWrapTheirLastColumnAtTheEdge) {
  const File file{std::tmpfile()};
  const Terminal terminal{file.get(), true};
  Table table{{{"name", Table::Align::kLeft}, {"about", Table::Align::kWrap}}};
  table.add({"shm", "mapped memory of one host\nsame_host, one_sided"});
  table.add({"tcp", ""});
  EXPECT_EQ(table.render(terminal, 32),
            "name  about\n"
            "shm   mapped memory of one host\n"
            "      same_host, one_sided\n"
            "tcp\n");
  EXPECT_EQ(table.render(terminal, 30),
            "name  about\n"
            "shm   mapped memory of one\n"
            "      host\n"
            "      same_host, one_sided\n"
            "tcp\n");
  EXPECT_EQ(table.render(terminal, 3), table.render(terminal, 30)) << "nothing is narrower than 24";
  EXPECT_EQ(table.render(terminal), table.render(terminal, 0)) << "a file has no edge";
}

TEST(ProgressBar, LeavesRoomForItsTextOnNarrowTerminals) {
  EXPECT_EQ(bar_cells(200), 24u);
  EXPECT_EQ(bar_cells(40), 10u);
  EXPECT_EQ(bar_cells(1), 4u);
}

}  // namespace
}  // namespace tool
