#include "topology/nccl_form.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"

namespace ropewalk::topology {
namespace {

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

struct Open {
  std::string name;
  std::size_t children = 0;
};

class Scanner {
 public:
  Scanner(std::string_view text, std::string_view origin, const NcclFormLimits& limits)
      : text_(text), origin_(origin), limits_(limits) {}

  void run() {
    while (true) {
      skip_between();
      if (at_ == text_.size()) break;
      if (text_[at_] != '<') refuse("text between elements");
      if (text_.substr(at_).starts_with("<!--")) {
        comment();
      } else if (text_.substr(at_).starts_with("</")) {
        closing();
      } else {
        opening();
      }
    }
    if (!open_.empty()) refuse("<" + open_.back().name + "> is not closed");
    if (elements_ == 0) refuse("no element");
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<long>(at_), '\n');
    throw Error(Errc::kInvalidArgument, "{}: line {}: {}", origin_, line, what);
  }

  [[nodiscard]] char peek() const {
    if (at_ >= text_.size()) refuse("ends within a tag");
    return text_[at_];
  }

  void expect(char wanted) {
    if (peek() != wanted) refuse(std::string("expected ") + wanted);
    ++at_;
  }

  void skip_between() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  void comment() {
    const std::size_t end = text_.find("-->", at_);
    if (end == std::string_view::npos) refuse("comment without an end");
    at_ = end + 3;
  }

  std::string word() {
    const std::size_t begin = at_;
    while (is_name_character(peek())) ++at_;
    std::string found(text_.substr(begin, at_ - begin));
    if (found.empty()) refuse("a name is missing, or <? or a tab stands where one should");
    if (found.size() > limits_.text_bytes) refuse("a name is too long");
    return found;
  }

  void closing() {
    at_ += 2;
    const std::string name = word();
    expect('>');
    if (open_.empty() || open_.back().name != name) refuse("</" + name + "> closes nothing");
    open_.pop_back();
  }

  void opening() {
    ++at_;
    const std::string name = word();
    if (++elements_ > limits_.elements) {
      refuse(fmt::format("more than {} elements", limits_.elements));
    }
    if (open_.empty() && elements_ > 1)
      refuse("<" + name + "> stands beside the outermost element");
    if (!open_.empty() && ++open_.back().children > limits_.children) {
      refuse(fmt::format("<{}> has more than {} children", open_.back().name, limits_.children));
    }
    std::set<std::string> seen;
    while (peek() == ' ') {
      ++at_;
      attribute(seen);
    }
    if (peek() == '/') {
      ++at_;
      expect('>');
      return;
    }
    expect('>');
    open_.push_back({name});
  }

  void attribute(std::set<std::string>& seen) {
    const std::string key = word();
    if (!seen.insert(key).second) refuse("attribute " + key + " twice");
    if (seen.size() > limits_.attributes) {
      refuse(fmt::format("more than {} attributes", limits_.attributes));
    }
    expect('=');
    expect('"');
    const std::size_t begin = at_;
    while (peek() != '"') {
      const char c = text_[at_];
      // No entity is decoded, and a line end within a tag is an error.
      if (c < ' ' || c == '<' || c == '>' || c == '&') refuse("a value holds a bad character");
      ++at_;
    }
    if (at_ - begin > limits_.text_bytes) refuse("the value of " + key + " is too long");
    ++at_;
  }

  std::string_view text_;
  std::string_view origin_;
  NcclFormLimits limits_;
  std::size_t at_ = 0;
  std::size_t elements_ = 0;
  std::vector<Open> open_;
};

}  // namespace

void check_nccl_form(std::string_view text, std::string_view origin, const NcclFormLimits& limits) {
  Scanner(text, origin, limits).run();
}

}  // namespace ropewalk::topology
