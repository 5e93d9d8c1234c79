#include "terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "streams.h"

namespace tool {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Terminal::Terminal(std::FILE* stream, bool colour_allowed)
    : stream_(stream), interactive_(isatty(fileno(stream)) == 1), colour_(interactive_ && colour_allowed) {}

unsigned Terminal::width() const {
  winsize size{};
  if (ioctl(fileno(stream_), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string Terminal::style(std::string_view text, const char* code) const {
  return colour_ ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string{text};
}

size_t visible_width(std::string_view text) {
  size_t width = 0;
  bool escaped = false;
  for (const char letter : text) {
    if (letter == '\033') escaped = true;
    const bool continues = (static_cast<unsigned char>(letter) & 0xC0) == 0x80;
    if (!escaped && !continues) ++width;
    if (escaped && letter == 'm') escaped = false;
  }
  return width;
}

std::string Table::render(const Terminal& terminal) const {
  std::vector<size_t> widths;
  for (size_t column = 0; column < columns_.size(); ++column) {
    widths.push_back(visible_width(columns_[column].title));
    for (const auto& row : rows_) widths[column] = std::max(widths[column], visible_width(row[column]));
  }
  std::string text;
  const auto add_row = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      const std::string padding(widths[column] - visible_width(row[column]), ' ');
      const bool left = columns_[column].align == Align::kLeft;
      line += (column == 0 ? "" : "  ") + (left ? row[column] + padding : padding + row[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(terminal.bold(column.title));
  add_row(titles);
  for (const auto& row : rows_) add_row(row);
  return text;
}

unsigned bar_cells(unsigned width) { return std::clamp(width / 4, 4u, 24u); }

ProgressBar::ProgressBar(const Terminal& terminal, std::string title)
    : terminal_(terminal), title_(std::move(title)) {}

void ProgressBar::update(double share, std::string_view text) {
  const auto now = steady_clock::now();
  if (!terminal_.interactive() || (drawn_ && now - drawn_at_ < milliseconds{100})) return;
  const unsigned all_cells = bar_cells(terminal_.width());
  const double cells = std::clamp(share, 0.0, 1.0) * all_cells;
  const auto full = static_cast<unsigned>(std::floor(cells));
  std::string bar;
  for (unsigned cell = 0; cell < all_cells; ++cell) {
    bar += cell < full ? "━" : (cell == full && cells - full >= 0.5) ? "╸" : terminal_.dim("─");
  }
  const size_t taken = title_.size() + all_cells + 9;
  const size_t room = terminal_.width() > taken ? terminal_.width() - taken : 0;
  tell(terminal_.stream(),
       fmt::format("\r\033[K{} {} {:3.0f}%  {}", title_, bar, share * 100, text.substr(0, room)));
  drawn_ = true;
  drawn_at_ = now;
}

void ProgressBar::clear() {
  if (!drawn_) return;
  tell(terminal_.stream(), "\r\033[K");
  drawn_ = false;
}

}  // namespace tool
