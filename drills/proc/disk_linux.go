package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Disk is a small file system that a drill can fill: writes to it then fail
// with ENOSPC. It is mounted nowhere: it lives as long as this process, so
// that no end of a drill leaves it behind.
type Disk struct{ mount *os.File }

// NewDisk makes a disk of so many bytes. Only root may.
func NewDisk(bytes int64) (*Disk, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a small disk: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := errors.Join(unix.FsconfigSetString(fs, "size", fmt.Sprint(bytes)), unix.FsconfigCreate(fs)); err != nil {
		return nil, fmt.Errorf("making a small disk: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making a small disk: %w", err)
	}
	return &Disk{os.NewFile(uintptr(mount), "disk")}, nil
}

// Dir is the disk's folder, for this process and those that it starts.
func (d *Disk) Dir() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), d.mount.Fd()) }

// Fill takes all that is left of the disk.
func (d *Disk) Fill() error {
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("filling a disk: %w", err)
	}
	defer func() { _ = f.Close() }()
	for {
		// A write that fits in part writes that part before it fails.
		if _, err := f.Write(make([]byte, 1<<20)); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return fmt.Errorf("filling a disk: %w", err)
		}
	}
}

// Free gives back what Fill took.
func (d *Disk) Free() error {
	if err := os.Remove(d.ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("freeing a disk: %w", err)
	}
	return nil
}

func (d *Disk) ballast() string { return filepath.Join(d.Dir(), "ballast") }

// Close gives the disk up; it goes when no process uses it.
func (d *Disk) Close() { _ = d.mount.Close() }
