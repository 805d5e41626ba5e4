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

// Disk is for Linux.
type Disk struct{}

// NewDisk cannot be done here.
func NewDisk(int64) (*Disk, error) { return nil, errors.New("this system makes no small disk") }

// Dir see NewDisk.
func (*Disk) Dir() string { return "" }

// Fill see NewDisk.
func (*Disk) Fill() error { return nil }

// Free see NewDisk.
func (*Disk) Free() error { return nil }

// Close see NewDisk.
func (*Disk) Close() {}

// SurviveFullDisk does nothing here.
func SurviveFullDisk() {}
