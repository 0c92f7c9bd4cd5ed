// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rows of tokens and heads from one tensor to another.

#include "episodic/base/inline.hpp"
#include "episodic/base/tensor_view.hpp"

namespace EPISODIC_NAMESPACE {

/// to = from, element by element, converted to its dtype (to nearest even). The two have the same
/// sizes. They do not overlap, or are the same rows.
/// \throws DataError naming the parameter for other sizes, null data, codes, memory that is not the
///         host's, strides that no memory has, or rows of `to` that overlap each other.
void copy_rows(const TensorView& from, const MutableTensorView& to);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/attention/impl/copy_rows.hpp"
#endif
