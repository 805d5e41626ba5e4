package child

import "syscall"

func endWithParent(attr *syscall.SysProcAttr, last syscall.Signal) { attr.Pdeathsig = last }
