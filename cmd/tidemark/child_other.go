//go:build !linux

package main

import "syscall"

// childAttributes are empty where the system cannot end a child with its
// parent.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
