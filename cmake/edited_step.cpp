#include "edited_step.h"  // written by edit.py: the step, and its registration
