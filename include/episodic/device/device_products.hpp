// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A model's frozen products on a CUDA device, for training (training/trainable_decoder.hpp). In
/// builds with CUDA.

#include <memory>

#include "episodic/model/frozen_products.hpp"

namespace episodic {

struct OpenModel;  // model/open_model.hpp

/// Takes the weights of the products to device memory, widened to float32 as training has them on
/// the host: 4 bytes each. The products are cuBLAS's, in float32; rows go there and back in every
/// call, which waits for them.
/// \throws DeviceError; BudgetError where the device has no room; FileError for weights whose type
///         cannot be widened
std::unique_ptr<FrozenProducts> load_device_products(const OpenModel& model, int device = 0);

}  // namespace episodic
