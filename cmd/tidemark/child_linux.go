package main

import "syscall"

// childAttributes end a child with its parent, however that ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}
