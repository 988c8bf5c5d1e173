#pragma once

namespace ingot::inference {

/// Unicode White_Space: what \s means.
bool is_white_space(char32_t code_point);

/// Unicode's word characters (UTS 18, annex C): Alphabetic, Mark, Decimal_Number,
/// Connector_Punctuation, Join_Control. They decide whether a `single_word` token stands alone.
bool is_word_character(char32_t code_point);

/// General category Mark (Mn, Mc, Me).
bool is_mark(char32_t code_point);

}  // namespace ingot::inference
