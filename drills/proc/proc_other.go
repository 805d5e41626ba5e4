//go:build !linux

package proc

import (
	"errors"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return nil }

func limitFiles(int, bool) error {
	return errors.New("this system cannot limit another process's files")
}

// SurviveFullDisk does nothing here.
func SurviveFullDisk() {}
