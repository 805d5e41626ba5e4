//go:build !linux

package child

import "syscall"

// endWithParent does nothing: this system has no parent-death signal.
func endWithParent(*syscall.SysProcAttr, syscall.Signal) {}
