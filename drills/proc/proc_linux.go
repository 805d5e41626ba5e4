package proc

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// limitFiles sets the process's soft limit of file sizes to nothing, or to
// what is allowed at most.
func limitFiles(pid int, full bool) error {
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &limit); err != nil {
		return err
	}
	limit.Cur = 0
	if !full {
		limit.Cur = limit.Max
	}
	return unix.Prlimit(pid, unix.RLIMIT_FSIZE, &limit, nil)
}

// SurviveFullDisk makes writes fail with an error (EFBIG) where the kernel
// would end the process for it. A process that may be given FullDisk calls it
// first.
func SurviveFullDisk() { signal.Ignore(syscall.SIGXFSZ) }
