#pragma once
// Lines of a printed kernel, broken where they are too long.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/nki/program/text.hpp"

namespace annulus::nki::print_detail {

/// Collects lines of at most `width` columns where the text can be broken.
class PythonLines {
 public:
  static constexpr std::size_t width = 120;

  void open_block() {
    ++depth_;
    block_start_ = lines_.size();
  }
  void open_block(std::string_view head) {
    statement(head);
    open_block();
  }
  void close_block() { --depth_; }
  /// The head of a function of the module; its body follows.
  void define(std::string_view name, std::vector<std::string> const& parameters, std::string_view decorator = "") {
    blank();
    if (!decorator.empty()) statement(decorator);
    call(concat("def ", name), parameters, ":");
    open_block();
  }
  void blank() { lines_.emplace_back(); }
  /// Broken at spaces where it is too long; further lines begin `indent` columns further in.
  void comment(std::string text, std::size_t indent = 0) {
    std::size_t const room = width - 2 - indentation().size();
    while (text.size() > room) {
      std::size_t const end = text.rfind(' ', room);
      if (end == std::string::npos || text.find_first_not_of(' ') > end) break;
      statement("# " + text.substr(0, end));
      text = std::string(indent, ' ') + text.substr(end + 1);
    }
    statement(text.empty() ? "#" : "# " + text);
  }
  void statement(std::string_view text) { lines_.push_back(concat(indentation(), text)); }

  /// Appends head(arguments)tail; `head` is without the parenthesis.
  void call(std::string_view head, std::vector<std::string> const& arguments, std::string_view tail = "") {
    std::string const end = concat(")", tail);
    std::string line = concat(indentation(), head, "(");
    std::string const text = joined(arguments) + end;
    if (arguments.empty() || line.size() + text.size() <= width) return lines_.push_back(line + text);
    // If the parenthesis is far to the right, or so far that a part has no room, arguments begin on a new line.
    auto const fits = [&](std::string_view part) { return line.size() + without_trailing_space(part).size() <= width; };
    bool const aligned = line.size() <= width / 2 && std::ranges::all_of(pieces(text), fits);
    std::string const margin(aligned ? line.size() : indentation().size() + 2 * step, ' ');
    if (!aligned) lines_.push_back(std::exchange(line, margin));
    auto const add = [&](std::string_view piece) {
      if (line.size() > margin.size() && line.size() + without_trailing_space(piece).size() > width)
        lines_.emplace_back(without_trailing_space(std::exchange(line, margin)));
      line += piece;
    };
    for (std::string const& argument : arguments) {
      std::string const piece = argument + (&argument == &arguments.back() ? end : ", ");
      if (margin.size() + without_trailing_space(piece).size() <= width)
        add(piece);
      else
        for (std::string_view part : pieces(piece)) add(part);
    }
    lines_.push_back(line);
  }

  /// Items with commas between them and a tail, as many to a line as there is room for.
  void list(std::vector<std::string> const& items, std::string_view tail) {
    std::string line;
    for (std::string const& item : items) {
      if (!line.empty() && indentation().size() + line.size() + item.size() + 2 > width)
        statement(std::exchange(line, ""));
      line += concat(line.empty() ? "" : " ", item, &item == &items.back() ? tail : ",");
    }
    statement(line);
  }

  /// True if the next line is the first of a block.
  bool at_block_start() const { return lines_.size() == block_start_; }

  void append(PythonLines const& other) { lines_.insert(lines_.end(), other.lines_.begin(), other.lines_.end()); }

  std::string text() const {
    std::string all;
    for (std::string const& line : lines_) all += line + "\n";
    return all;
  }

 private:
  static constexpr std::size_t step = 4;

  std::string indentation() const { return std::string(depth_ * step, ' '); }

  static std::string_view without_trailing_space(std::string_view text) {
    return text.substr(0, text.find_last_not_of(' ') + 1);
  }

  /// Splits after commas and before signs, where a line inside parentheses may be broken.
  static std::vector<std::string_view> pieces(std::string_view text) {
    std::vector<std::string_view> found;
    std::size_t begin = 0;
    for (std::size_t i = 0; i + 2 < text.size(); ++i) {
      bool const comma = text[i] == ',' && text[i + 1] == ' ';
      bool const sign = text[i] == ' ' && (text[i + 1] == '+' || text[i + 1] == '-') && text[i + 2] == ' ';
      if (!comma && !sign) continue;
      std::size_t const end = comma ? i + 2 : i + 1;
      found.push_back(text.substr(begin, end - begin));
      begin = end;
    }
    found.push_back(text.substr(begin));
    return found;
  }

  std::vector<std::string> lines_;
  std::size_t depth_ = 0, block_start_ = 0;
};

}  // namespace annulus::nki::print_detail
