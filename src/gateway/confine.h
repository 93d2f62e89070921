/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The last step before the loop: no capability, nothing that a program could be started or traced with,
 * and only these system calls. Of sockets only TCP and UDP over IPv4 can be made; no file can be opened.
 */

#include "base/error.h"

int confine(struct error *err);
