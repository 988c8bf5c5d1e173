#include "inference/chat/jinja/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/chat/jinja/expression_parser.h"
#include "inference/chat/jinja/lexer.h"

namespace ingot::inference::jinja {
namespace {

using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), expressions_(tokens_) {}

  Block run() {
    Block block = statements({});
    if (tokens_.current().kind != TokenKind::kEnd) tokens_.fail_expected("a statement");
    return block;
  }

 private:
  // Up to a block tag that starts with one of the words, which is then current, or to the end.
  Block statements(Words ends) {
    const TokenStream::Depth depth(tokens_);
    Block block;
    while (tokens_.current().kind != TokenKind::kEnd) {
      const std::uint32_t line = tokens_.line();
      if (tokens_.current().kind == TokenKind::kBlockBegin) {
        const Token& word = tokens_.ahead();
        if (std::any_of(ends.begin(), ends.end(), [&](auto end) { return word.is_name(end); })) {
          tokens_.next();
          return block;
        }
        tokens_.next();
        block.push_back(Statement{.node = tag(), .line = line});
        tokens_.expect(TokenKind::kBlockEnd);
      } else if (tokens_.current().kind == TokenKind::kData) {
        block.push_back(Statement{.node = Data{.text = tokens_.next().text}, .line = line});
      } else {
        tokens_.expect(TokenKind::kVariableBegin);
        block.push_back(Statement{.node = Output{.value = expressions_.tuple(true)}, .line = line});
        tokens_.expect(TokenKind::kVariableEnd);
      }
    }
    if (ends.size() != 0) {
      tokens_.fail(
          fmt::format("the end of the template, where '{}' is missing", *(ends.end() - 1)));
    }
    return block;
  }

  Block body(Words ends) {
    tokens_.expect(TokenKind::kBlockEnd);
    return statements(ends);
  }

  // Behind the word and up to the end of the last tag, which is not taken.
  Statement::Node tag() {
    const std::string word =
        tokens_.current().kind == TokenKind::kName ? tokens_.current().text : "";
    using Method = Statement::Node (Parser::*)();
    static constexpr std::array<std::pair<std::string_view, Method>, 7> kStatements = {
        {{"set", &Parser::set},
         {"if", &Parser::conditional},
         {"for", &Parser::loop},
         {"macro", &Parser::macro},
         {"break", &Parser::break_loop},
         {"continue", &Parser::continue_loop},
         {"generation", &Parser::generation}}};
    for (const auto& [name, method] : kStatements) {
      if (word != name) continue;
      tokens_.next();
      return (this->*method)();
    }
    if (word.empty()) tokens_.fail_expected("a statement");
    if (word.starts_with("end") || word == "else" || word == "elif") {
      tokens_.fail(fmt::format("'{}' without its beginning", word));
    }
    tokens_.unsupported(fmt::format("the statement '{}'", word));
  }

  Statement::Node set() {
    Target target = expressions_.target(true);
    if (tokens_.skip_operator("=")) {
      return Set{.target = std::move(target), .value = expressions_.tuple(true)};
    }
    SetBlock made{.target = std::move(target), .filters = expressions_.filter_chain(), .body = {}};
    ++n_inner_;
    made.body = body({"endset"});
    --n_inner_;
    tokens_.next();
    return made;
  }

  Statement::Node conditional() {
    If made;
    while (true) {
      ExpressionPtr condition = expressions_.tuple(false);
      Block block = body({"elif", "else", "endif"});
      made.branches.emplace_back(std::move(condition), std::move(block));
      if (tokens_.skip_name("elif")) continue;
      if (tokens_.skip_name("else")) made.otherwise = body({"endif"});
      tokens_.expect_name("endif");
      return made;
    }
  }

  Statement::Node loop() {
    For made;
    made.target = expressions_.target(false);
    require_no_loop_name(made.target);
    tokens_.expect_name("in");
    made.sequence = expressions_.tuple(false);
    if (tokens_.skip_name("if")) made.condition = expressions_.expression();
    if (tokens_.current().is_name("recursive")) tokens_.unsupported("a recursive loop");
    ++n_loops_;
    ++n_inner_;
    made.body = body({"else", "endfor"});
    --n_loops_;
    if (tokens_.skip_name("else")) made.otherwise = body({"endfor"});
    --n_inner_;
    tokens_.expect_name("endfor");
    return made;
  }

  void require_no_loop_name(const Target& target) const {
    if (target.name == "loop") tokens_.fail("'loop' cannot be the variable of a loop");
    for (const Target& member : target.members) require_no_loop_name(member);
  }

  Statement::Node macro() {
    if (n_inner_ != 0) tokens_.unsupported("a macro inside a loop, block or macro");
    Macro made;
    made.name = tokens_.expect_any_name("the name of a macro");
    tokens_.expect_operator("(");
    while (!tokens_.current().is_operator(")")) {
      Macro::Parameter parameter{.name = tokens_.expect_any_name("a parameter"), .value = nullptr};
      if (tokens_.skip_operator("=")) {
        parameter.value = expressions_.expression();
      } else if (!made.parameters.empty() && made.parameters.back().value) {
        tokens_.fail("a parameter without a default behind one with a default");
      }
      made.parameters.push_back(std::move(parameter));
      if (!tokens_.skip_operator(",")) break;
    }
    tokens_.expect_operator(")");
    const std::size_t outer_loops = std::exchange(n_loops_, 0);
    ++n_inner_;
    made.body = body({"endmacro"});
    --n_inner_;
    n_loops_ = outer_loops;
    tokens_.next();
    return made;
  }

  Statement::Node break_loop() {
    if (n_loops_ == 0) tokens_.fail("'break' outside of a loop");
    return Break{};
  }

  Statement::Node continue_loop() {
    if (n_loops_ == 0) tokens_.fail("'continue' outside of a loop");
    return Continue{};
  }

  Statement::Node generation() {
    ++n_inner_;
    Generation made{.body = body({"endgeneration"})};
    --n_inner_;
    tokens_.next();
    return made;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  std::size_t n_loops_ = 0;  // around this place, within its macro
  std::size_t n_inner_ = 0;  // scopes around this place: loops, macros, blocks
};

}  // namespace

Block parse_template(std::string_view source) {
  return Parser(source).run();
}

}  // namespace ingot::inference::jinja
