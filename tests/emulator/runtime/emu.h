// All a translated module needs.
#pragma once
#include "launch.h"
