/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The line "mirrors" of `cspace doctor`. */

#include "conf/conf.h"
#include "setup_report.h"

/* Adds it, or nothing where no package manager tells of a mirror. Takes a few seconds at most beside the managers' own time. */
void doctor_mirrors(const struct conf *conf, struct report *r);
