/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdio.h>

#include "command.h"

void help_overview(FILE *f);
void help_group(FILE *f, const char *group); /* "template" */
void help_command(FILE *f, const struct command *c);
